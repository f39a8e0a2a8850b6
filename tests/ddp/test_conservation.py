"""The hook loses nothing in steps that DDP or the program treats specially."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.ddp.edges import LEFT_OUT
from tests.ddp.program import RANKS
from tests.forking import FORKING

pytestmark = pytest.mark.serial
ROOT = Path(__file__).resolve().parents[2]
ENV = {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="module")
def edges(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("edges")
    program = [FORKING.python(), Path(__file__).with_name("edges.py")]
    processes = [subprocess.Popen([*program, str(rank), folder], env=ENV) for rank in range(RANKS)]
    assert [process.wait(timeout=300) for process in processes] == [0] * RANKS
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


# with an odd number of steps, gradients are views of DDP's buckets
@pytest.mark.long
@pytest.mark.parametrize(("ranks", "steps"), [(2, 16), (3, 15)])
def test_what_is_applied_and_kept_adds_up_to_what_was_given_for_all_codecs(ranks: int, steps: int) -> None:
    """Check that applied updates plus memories equal the gradients, for all codecs, while unused parameters, skipped steps,
    a loss scale, two backward passes and no_sync alternate, also in a group of some ranks.
    """
    command = [FORKING.python(), "-m", "studies.hook_conservation", "--case", "mixed"]
    command += ["--ranks", str(ranks), "--steps", str(steps)]
    ended = subprocess.run(command, env=ENV, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    rows = [line for line in ended.stdout.splitlines() if line.startswith("| ")]
    assert len(rows) > 20  # the heading, and a line per codec


@pytest.mark.sweep
@pytest.mark.parametrize(("rule", "why"), LEFT_OUT)
def test_a_step_that_is_not_taken_changes_no_memory_under_any_rule(edges: list[dict[str, Any]], rule: str, why: str) -> None:
    assert [found["left out"][f"{rule} {why}"] for found in edges] == [0.0] * RANKS


@pytest.mark.parametrize("way", ["found", "named", "resumed"])
def test_memories_follow_the_scale_of_the_loss(edges: list[dict[str, Any]], way: str) -> None:
    """Check that the memories under a loss scale, divided by the scale, equal those without a scale bit for bit, since scales
    are powers of two.
    """
    assert [found["scaled"][way] for found in edges] == [0.0] * RANKS


def test_two_scalers_or_a_group_that_comes_too_late_are_refused_in_one_line(edges: list[dict[str, Any]]) -> None:
    for rank, found in enumerate(edges):
        assert "2 GradScalers are in use: write comm_hook(scaler=...)" in found["refused"]["scalers"]
        assert f"DDP averages over the ranks [{rank}], and a state was saved or loaded for [0, 1]" in found["refused"]["late"]
        assert not any("\n" in message for message in found["refused"].values())


def test_a_model_that_is_watched_may_be_copied(edges: list[dict[str, Any]]) -> None:
    assert all(found["copied"] for found in edges)
