"""The communication hook under real torch.distributed processes (gloo), against sums that are known."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from psnode import ddp
from psnode.errors import ConfigurationError
from tests.ddp.program import RANKS, SHAPES, STEPS, gradients

pytestmark = pytest.mark.serial
ROOT = Path(__file__).resolve().parents[2]
Results = list[dict[str, torch.Tensor]]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("ddp")
    program = [sys.executable, Path(__file__).with_name("program.py")]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    processes = [subprocess.Popen([*program, str(rank), folder], env=env) for rank in range(RANKS)]
    assert [process.wait(timeout=300) for process in processes] == [0] * RANKS
    return [load_file(folder / f"{rank}.safetensors") for rank in range(RANKS)]


def weights(found: dict[str, torch.Tensor], case: str) -> dict[str, torch.Tensor]:
    return {name: found[f"{case}/weights/{name}"] for name in SHAPES}


def all_gradients() -> dict[str, torch.Tensor]:
    """The sum over all ranks and steps, in float64."""
    every = [gradients(rank, step) for rank in range(RANKS) for step in range(STEPS)]
    return {name: torch.stack([each[name].double() for each in every]).sum(0) for name in SHAPES}


@pytest.mark.parametrize("case", ["plain", "identity", "topk", "qsgd", "dgc", "svd", "countmean", "resumed"])
def test_replicas_are_equal_bit_for_bit(results: Results, case: str) -> None:
    first, second = (weights(found, case) for found in results)
    assert all(torch.equal(first[name], second[name]) for name in SHAPES)
    assert any(value.abs().max() > 0 for value in first.values())


def test_without_compression_it_is_ddp(results: Results) -> None:
    """Halves are exact, so (a + b) / 2 = a / 2 + b / 2."""
    plain, coded = weights(results[0], "plain"), weights(results[0], "identity")
    assert all(torch.equal(plain[name], coded[name]) for name in SHAPES)


@pytest.mark.parametrize("case", ["topk", "resumed"])
def test_error_feedback_loses_nothing_although_ddp_makes_its_buckets_anew(results: Results, case: str) -> None:
    """With lr 1: ranks * (w_0 - w_T) + the residuals = the sum of all gradients; also if a state was saved and loaded between."""
    applied = weights(results[0], case)
    for name, total in all_gradients().items():
        sent = -RANKS * applied[name].double()
        key = f"{case}/memories/residual/weights.{name}"
        kept = sum((found[key].double() for found in results if key in found), torch.zeros(total.numel(), dtype=torch.float64))
        assert torch.allclose(sent + kept.reshape(total.shape), total, rtol=0, atol=1e-4), name
        assert (key in results[0]) == (4 * total.numel() >= 4096)  # smaller ones travel as they are


def test_only_what_was_asked_for_is_sent(results: Results) -> None:
    """5 % of two matrices at 4 bytes and their indices; a small matrix and a vector as they are."""
    coded, whole = 40 * 60 + 70 * 33, 20 * 50 + 7
    sent = int(results[0]["topk/sent"]) / STEPS
    assert 0.05 * 4 * coded < sent - 4 * whole < 0.05 * 6 * coded + 200


def test_an_unbiased_codec_stays_near_the_mean(results: Results) -> None:
    exact, coded = weights(results[0], "plain"), weights(results[0], "qsgd")
    for name in SHAPES:
        assert torch.linalg.norm(coded[name] - exact[name]) < torch.linalg.norm(exact[name])


def test_dgc_keeps_its_momentum_and_its_velocity_at_the_sender(results: Results) -> None:
    assert {key.split("/")[2] for key in results[0] if key.startswith("dgc/memories/")} >= {"momentum", "velocity"}


def test_a_gradient_that_is_not_finite_on_one_rank_is_nan_on_all_and_changes_no_memory(results: Results) -> None:
    for found in results:
        assert found["nan/spoilt"]
        [change] = [value for key, value in found.items() if key.startswith("nan/memories")]
        assert change.abs().max() < 1e-4


@pytest.mark.parametrize(
    ("codec", "named", "message"), [("nonsense", {}, "nonsense"), ("topk", {"feedback": "ef:rescale=true"}, "learning rate")]
)
def test_what_it_cannot_do_is_refused(codec: str, named: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ddp.comm_hook(codec, **named)


def test_a_foreign_state_is_refused() -> None:
    state, _ = ddp.comm_hook("topk")
    with pytest.raises(ConfigurationError, match="does not belong"):
        state.load_state_dict({"step": 1, "weight": torch.zeros(3)})
