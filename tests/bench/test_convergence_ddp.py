"""DDP as a contender of the convergence table: it trains like psnode's dense, and its bytes are those that torch counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from psnode.bench.convergence.equal_steps import run
from psnode.bench.convergence.result_tables import latex, markdown
from psnode.errors import ConfigurationError, DivergedError
from psnode.jobs.planning.ddp_hooks import Communication, payload_bytes, wrap
from psnode.jobs.planning.ddp_overhead import lone_group
from psnode.jobs.planning.ddp_step import sums_of
from psnode.jobs.planning.profile import TensorTimes

COMMON = "--max-steps 6 --batch-size 8 --threads 1 --no-tensorboard --lr 0.05 --lr-schedule cosine --weight-decay 0.01"
PARAMETERS = 431_080  # of LeNet


def compared(runs: list[str], output: Path, common: str = COMMON) -> list[dict[str, Any]]:
    result = run(runs, common, workers=2, seeds=[1], output=output, local=True, evaluate_every=4, rate="1mbit")
    return list(result["rows"])


@pytest.mark.long
@pytest.mark.serial
@pytest.mark.usefixtures("in_this_process", "forks")
@pytest.mark.parametrize("optimizer", ["sgd --nesterov", "adamw --clip-grad-norm 0.5"])
def test_ddp_trains_as_dense_does_and_sends_what_a_ring_sends(optimizer: str, tmp_path: Path) -> None:
    common = f"{COMMON.replace('0.05', '0.002')} --optimizer {optimizer}"
    dense, ddp = compared(["dense", "DDP=ddp:fp32"], tmp_path, common)
    assert [point["step"] for point in ddp["curve"]] == [4, 6]
    for one, other in zip(dense["curve"], ddp["curve"], strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-3)
    assert (ddp["lr"], ddp["ratio"], ddp["encode"]) == (0.002, 1.0, None)
    assert ddp["uplink_bytes"] == ddp["downlink_bytes"] == 4 * PARAMETERS  # 2 (P - 1) / P of the payload, with P = 2
    [_, last] = ddp["curves"][0]
    assert last["at_rate"] == pytest.approx(last["seconds"] + 8 * 4 * PARAMETERS * 6 / 1e6)
    written = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*")}
    assert compared(["dense", "DDP=ddp:fp32"], tmp_path, common)[1] == ddp
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*")} == written


def test_halved_gradients_have_half_the_bytes() -> None:
    shapes = [(10, 3, 2, 2), (7,)]
    assert [payload_bytes(Communication.parse(kind), shapes, 1) for kind in ("fp32", "fp16", "bf16")] == [508, 254, 254]


def test_the_bytes_of_powersgd_are_those_that_torch_counts() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
    from torch.nn.parallel import DistributedDataParallel

    model = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.Flatten(), torch.nn.Linear(144, 30), torch.nn.Linear(30, 2))
    shapes = [parameter.shape for parameter in model.parameters()]
    with lone_group():
        trained = DistributedDataParallel(model, bucket_cap_mb=1000)
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
        trained.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        counts = []
        for _ in range(4):
            before = state.total_numel_after_compression
            trained(torch.ones(3, 1, 8, 8)).sum().backward()
            counts.append(4 * (state.total_numel_after_compression - before))
    communication = Communication.parse("powersgd:rank=2,start=2")
    whole = 4 * sum(parameter.numel() for parameter in model.parameters())
    assert counts[:2] == [0, 0]  # torch does not count steps in which it sends whole gradients
    assert [payload_bytes(communication, shapes, step) for step in range(1, 5)] == [whole, whole, *counts[2:]]


def test_buckets_are_those_of_a_plain_ddp_unless_a_size_is_stated() -> None:
    """Compare the sizes of buckets after three steps, when torch knows the order of the gradients."""
    from torch.nn.parallel import DistributedDataParallel

    model = torch.nn.Sequential(*(torch.nn.Linear(500, 500) for _ in range(5)))

    def sizes(trained: torch.nn.Module) -> str:
        for _ in range(3):
            trained(torch.ones(2, 500)).sum().backward()
        logged: Any = trained
        return str(logged._get_ddp_logging_data()["rebuilt_bucket_sizes"])

    with lone_group():
        plain = sizes(DistributedDataParallel(model))
        assert plain == "2004000, 3006000"
        assert sizes(wrap(model, Communication.parse("fp32"))) == plain
        assert sizes(wrap(model, Communication.parse("fp32:bucket=1000"))) == "5010000"


@pytest.mark.parametrize("bias", [True, False])
def test_the_predicted_sums_of_powersgd_are_those_that_torch_asks_for(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare the sizes of a step's sums with those that torch's hook passes on, without empty ones."""
    model = torch.nn.Sequential(torch.nn.Linear(100, 60, bias=bias), torch.nn.Linear(60, 40, bias=bias))
    tensors = [TensorTimes(tuple(parameter.shape), 0.0, 0.0) for parameter in model.parameters()]
    asked = list[int]()
    all_reduce: Any = vars(torch.distributed)["all_reduce"]

    def watched(tensor: torch.Tensor, *more: Any, **named: Any) -> Any:
        asked.append(4 * tensor.numel())
        return all_reduce(tensor, *more, **named)

    with lone_group():
        trained = wrap(model, Communication.parse("powersgd:rank=2"))
        for _ in range(3):
            trained(torch.ones(2, 100)).sum().backward()
        monkeypatch.setattr(torch.distributed, "all_reduce", watched)
        trained(torch.ones(2, 100)).sum().backward()
    assert [each.nbytes for each in sums_of(tensors, "powersgd:rank=2")] == [size for size in asked if size]


@pytest.mark.parametrize(
    ("contender", "more", "told"),
    [
        ("ddp:fp8", "", "must be one of"),
        ("ddp:psnode:topk", "", "the hooks compared here are fp32, fp16, bf16, powersgd"),
        ("ddp:fp16", "--batches-per-step 2", "not trained with --batches-per-step"),
        ("ddp:fp16 --downlink qsgd", "", "not trained with --downlink"),
        ("ddp:fp16", "--optimizer rmsprop", "trained with sgd, adam, adamw"),
    ],
)
def test_what_ddp_cannot_be_trained_with_is_refused_before_anything_is_trained(
    contender: str, more: str, told: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=told):
        compared(["dense", contender], tmp_path / "out", f"{COMMON} {more}")
    assert not (tmp_path / "out").exists()


@pytest.mark.long
@pytest.mark.serial
@pytest.mark.usefixtures("in_this_process", "forks")
def test_a_rate_at_which_ddp_diverges_is_not_the_best_and_one_worker_sends_nothing(tmp_path: Path) -> None:
    """Check that .002 is chosen instead of 1e30, at which the weights overflow in the first steps, and that one worker sends
    0 bytes.
    """
    common = "--max-steps 6 --batch-size 8 --threads 1 --no-tensorboard"
    result = run(["ddp:fp32"], common, workers=1, seeds=[1], output=tmp_path, local=True, lrs=["0.002", "1e30"], evaluate_every=3)
    [row] = result["rows"]
    assert (row["lr"], row["tried_loss"]["1e+30"], row["uplink_bytes"], row["ratio"]) == (0.002, None, 0, None)
    assert "| ddp:fp32 | 0.002 |" in markdown(result) and "ddp:fp32" in latex(result)
    with pytest.raises(DivergedError, match="ddp:fp32"):
        run(["ddp:fp32"], common, workers=2, seeds=[1], output=tmp_path / "two", local=True, lrs=["1e30"], evaluate_every=3)
