"""The communication hook under the real Ray Train, with examples/ray_train.py: pip install 'ray[train]'."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = [pytest.mark.serial, pytest.mark.timeout(2000)]  # Ray starts a dozen processes, and waits for them
ROOT = Path(__file__).resolve().parents[2]
RANKS = range(2)
if importlib.util.find_spec("ray") is None:  # an import would take seconds
    pytest.skip("ray is not installed: pip install 'ray[train]'", allow_module_level=True)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """Return the results that both ranks of all runs have written; `reports` holds epoch, payload bytes sent and accuracy."""
    folder = tmp_path_factory.mktemp("ray")
    program = [sys.executable, Path(__file__).with_name("ray_program.py"), folder]
    done = subprocess.run(
        program, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=1800, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    print(*[line for line in done.stdout.splitlines() if line.endswith(" s")], sep="\n")
    return {
        name: [torch.load(folder / f"{name}-{rank}.pt", weights_only=True) for rank in RANKS]  # noqa: TID251
        for name in ("plain", "identity", "whole", "disturbed")
    }


def test_replicas_are_equal_and_without_a_loss_the_weights_are_those_of_plain_ddp(found: dict[str, list[dict[str, Any]]]) -> None:
    for name, (one, other) in found.items():
        for key, value in one["weights"].items():
            assert torch.equal(value, other["weights"][key]), (name, key)
    for key, value in found["plain"][0]["weights"].items():
        assert torch.equal(value, found["identity"][0]["weights"][key])


def test_coded_runs_learn_and_send_less(found: dict[str, list[dict[str, Any]]]) -> None:
    """Check accuracy and bytes of two epochs, which are 44 steps. topk sends a twentieth of 64 x 256 and 256 x 10 weights,
    and the biases uncoded.
    """
    _, dense, accuracy = found["identity"][0]["reports"][-1]
    assert accuracy > 0.7
    epoch, sent, accuracy = found["whole"][0]["reports"][1]
    print(f"bytes of a step and rank: identity {dense / 44:.0f}, topk {sent / 44:.0f}; accuracy {accuracy:.3f}")
    assert epoch == 2
    assert 0 < sent < 0.15 * dense
    assert found["whole"][0]["reports"][-1][2] > 0.7


def test_workers_that_ray_restarts_go_on_from_its_checkpoint_bit_for_bit(found: dict[str, list[dict[str, Any]]]) -> None:
    for whole, disturbed in zip(found["whole"], found["disturbed"], strict=True):
        assert [epoch for epoch, *_ in disturbed["reports"]] == [3, 4]  # from the second pair of processes
        assert all(torch.equal(value, disturbed["weights"][key]) for key, value in whole["weights"].items())
        [one], [other] = whole["state"], disturbed["state"]
        kept = [key for key, value in one.items() if isinstance(value, torch.Tensor)]
        assert kept
        assert all(torch.equal(one[key], other[key]) for key in kept)
