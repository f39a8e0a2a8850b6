"""The communication hook in real torch.distributed processes (gloo), compared with known sums."""

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
from tests.ddp.program import RANKS, RESUMED, SHAPES, STEPS, gradients
from tests.forking import FORKING

pytestmark = pytest.mark.serial
ROOT = Path(__file__).resolve().parents[2]
Results = list[dict[str, torch.Tensor]]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("ddp")
    program = [FORKING.python(), Path(__file__).with_name("program.py")]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    processes = [subprocess.Popen([*program, str(rank), folder], env=env) for rank in range(RANKS)]
    assert [process.wait(timeout=300) for process in processes] == [0] * RANKS
    return [load_file(folder / f"{rank}.safetensors") for rank in range(RANKS)]


def weights(found: dict[str, torch.Tensor], case: str) -> dict[str, torch.Tensor]:
    return {name: found[f"{case}/weights/{name}"] for name in SHAPES}


def all_gradients() -> dict[str, torch.Tensor]:
    """Return the sum over all ranks and steps, in float64."""
    every = [gradients(rank, step) for rank in range(RANKS) for step in range(STEPS)]
    return {name: torch.stack([each[name].double() for each in every]).sum(0) for name in SHAPES}


@pytest.mark.sweep
@pytest.mark.parametrize("case", ["plain", "identity", "topk", "qsgd", "dgc", "svd", "countmean", "lss", "topk apart"])
def test_replicas_are_equal_bit_for_bit(results: Results, case: str) -> None:
    first, second = (weights(found, case) for found in results)
    assert all(torch.equal(first[name], second[name]) for name in SHAPES)
    assert any(value.abs().max() > 0 for value in first.values())


def test_without_compression_it_is_ddp(results: Results) -> None:
    """Check that weights under the lossless hook equal DDP's: halves are exact in float32, so (a + b) / 2 = a / 2 + b / 2."""
    plain, coded = weights(results[0], "plain"), weights(results[0], "identity")
    assert all(torch.equal(plain[name], coded[name]) for name in SHAPES)


@pytest.mark.parametrize("case", ["topk", "topk apart"])
def test_error_feedback_loses_nothing_although_ddp_makes_its_buckets_anew(results: Results, case: str) -> None:
    """Check with lr 1 that ranks * (w_0 - w_T) + residuals is the sum of all gradients, even if a state is saved and loaded
    in between.
    """
    applied = weights(results[0], case)
    for name, total in all_gradients().items():
        sent = -RANKS * applied[name].double()
        key = f"{case}/memories/residual/weights.{name}"
        kept = sum((found[key].double() for found in results if key in found), torch.zeros(total.numel(), dtype=torch.float64))
        assert torch.allclose(sent + kept.reshape(total.shape), total, rtol=0, atol=1e-4), name
        assert (key in results[0]) == (4 * total.numel() >= 4096)  # smaller tensors are sent uncoded


@pytest.mark.sweep
@pytest.mark.parametrize("way", ["apart", "together"])
@pytest.mark.parametrize("case", [case for case, _, _ in RESUMED])
def test_a_saved_state_goes_on_bit_for_bit_although_ddp_begins_with_other_buckets(results: Results, case: str, way: str) -> None:
    for found in results:
        whole = [key.removeprefix(case) for key in found if key.startswith(f"{case}/") and not key.endswith("sent")]
        for key in whole:
            assert torch.equal(found[f"{case} {way}{key}"], found[f"{case}{key}"]), key
        assert len(whole) > len(SHAPES) or case == "qsgd"


def test_another_number_of_ranks_goes_on_with_the_mean_of_the_memories(results: Results) -> None:
    for found in results:
        for name in ("a", "c"):
            key = f"memories/residual/weights.{name}"
            mean = (results[0][f"topk/{key}"].double() + results[1][f"topk/{key}"].double()) / 2
            assert torch.equal(found[f"alone/{key}"], mean.float())


def test_ranks_that_go_on_from_different_steps_are_told(results: Results) -> None:
    for found in results:
        assert "rank 0 from step 0, rank 1 from step 4" in bytes(found["refused"]).decode()


def test_only_what_was_asked_for_is_sent(results: Results) -> None:
    """Check the bytes of a step: 5 % of two matrices as 4-byte values with their indices, and a small matrix and a vector
    uncoded.
    """
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


@pytest.mark.long
def test_its_thread_has_ended_when_python_does(tmp_path: Path) -> None:
    """Check that the hook's thread ends before the interpreter. A thread inside torch at shutdown would abort the process:
    "terminate called ...".
    """
    command = [sys.executable, Path(__file__).with_name("ending.py"), tmp_path]
    ended = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    during, running = ended.stdout.splitlines()
    assert "psnode-ddp" in during
    assert "psnode-ddp" not in running


def test_a_state_that_was_loaded_is_saved_again_as_it_was() -> None:
    """Check that a state can be saved unchanged right after it was loaded: a checkpoint may be saved before the next step."""
    state, _ = ddp.comm_hook("lss:refit=4", feedback="ef")
    saved = {
        "step": 3,
        "buckets": [["b", "a"], ["c"]],
        "memories/residual/a": torch.arange(3.0),
        "codebook/0/0": torch.zeros(4096, dtype=torch.uint8),
    }
    state.load_state_dict(saved)
    again = state.state_dict()
    assert again.keys() == saved.keys()
    assert (again["step"], again["buckets"]) == (3, [["b", "a"], ["c"]])
    assert all(torch.equal(again[key], saved[key]) for key in saved if "/" in key)


def test_a_foreign_state_is_refused() -> None:
    state, _ = ddp.comm_hook("topk")
    with pytest.raises(ConfigurationError, match="does not belong"):
        state.load_state_dict({"step": 1, "buckets": [], "weight": torch.zeros(3)})
    with pytest.raises(ConfigurationError, match="load what its"):
        state.load_state_dict({"weight": torch.zeros(3)})
    with pytest.raises(ConfigurationError, match="load the result of AllRanks"):
        ddp.AllRanks(state).load_state_dict({"step": 1, "buckets": []})
    with pytest.raises(ConfigurationError, match="another rank than 0"):
        ddp.AllRanks(state).load_state_dict({"step": 1, "buckets": [], "ranks": 2, "states": []})


def test_without_lightning_its_callback_is_refused_with_the_way_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from psnode.ddp.lightning import CodedGradients

    monkeypatch.setitem(sys.modules, "lightning", None)
    with pytest.raises(ConfigurationError, match=r"pip install '\.\[frameworks\]' in a clone of psnode"):
        CodedGradients("topk")
