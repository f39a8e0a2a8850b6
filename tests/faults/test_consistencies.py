"""Whole runs under every consistency rule, and the fate of gradients that arrive too late."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from psnode.config import Config
from psnode.config.resolve import resolve
from psnode.exchange.sender import GradientSender
from psnode.jobs.job import run
from psnode.plans.coding import Coding
from psnode.plans.groups import Tensor
from psnode.plans.rule import make_plan
from psnode.protocol.channel import FrameChannel
from psnode.protocol.round import Round
from psnode.records import checkpoint
from psnode.records.history import violations
from psnode.records.metrics import read_records
from psnode.transport.loopback import loopback_group
from tests import halting
from tests.exchange.given import Given
from tests.faults.slowed import slowed


def config(train_dir: Path, **changed: Any) -> Config:
    settings = {"scheme": "qsgd", "feedback": "ef", "batch_size": 8, "max_steps": 20, "eval_freq": 5, "local": 4, "lr": 0.02}
    settings |= {
        "keep_last": 0,
        "threads": 1,
        "tensorboard": False,
        "record_history": True,
        "hash_every": 1,
        "downlink": "bf16",
        "deadline": 60,
    }
    return Config(train_dir=train_dir, **{**settings, **changed})


def summary(train_dir: Path) -> dict[str, Any]:
    return dict(json.loads((train_dir / "summary.json").read_bytes()))


def versions(train_dir: Path) -> list[dict[str, Any]]:
    return [line for line in read_records(train_dir / "history.jsonl") if "groups" in line]


@pytest.mark.parametrize("rule", [{"consistency": "kofn", "num_aggregate": 3}, {"consistency": "ssp", "staleness": 0}], ids=str)
def test_rules_that_wait_for_all_are_bsp(tmp_path: Path, rule: dict[str, Any]) -> None:
    """With k = n or staleness 0, weights equal those of BSP bit for bit."""
    run(config(tmp_path / "bsp", local=3))
    run(config(tmp_path / "rule", local=3, **rule))
    assert summary(tmp_path / "rule")["model_hash"] == summary(tmp_path / "bsp")["model_hash"]


def test_k_of_n_takes_k_gradients_of_the_newest_version(tmp_path: Path) -> None:
    assert run(config(tmp_path, consistency="kofn", num_aggregate=3)) == 0
    assert violations(tmp_path) == []
    assert all(len(group) == 3 for line in versions(tmp_path) for group in line["groups"])
    assert [checkpoint.step_of(path) for path in checkpoint.complete(tmp_path)] == [5, 10, 15, 20]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("rule", "staleness"),
    [({"consistency": "ssp", "staleness": 1}, 1), ({"consistency": "ssp", "staleness": 3, "num_aggregate": 2}, 3),
     ({"consistency": "asp"}, None), ({"consistency": "asp", "num_aggregate": 2}, None)], ids=str,
)  # fmt: skip
def test_stale_gradients_are_within_the_bound_and_none_is_lost(
    tmp_path: Path, rule: dict[str, Any], staleness: int | None
) -> None:
    assert run(config(tmp_path, **rule, max_steps=40)) == 0
    assert violations(tmp_path, staleness) == []
    records = list(read_records(tmp_path / "metrics.jsonl"))
    assert [record["step"] for record in records] == list(range(1, 41))
    assert sum(record["dropped"] for record in records[:-1]) == 0  # after the last version nothing is awaited
    assert all(np.isfinite(record["loss"]) for record in records)
    assert [checkpoint.step_of(path) for path in checkpoint.complete(tmp_path)] == list(range(5, 41, 5))


@pytest.mark.parametrize("rule", [{"consistency": "kofn", "num_aggregate": 2}, {"consistency": "asp"}], ids=str)
def test_a_run_that_need_not_wait_resumes(tmp_path: Path, rule: dict[str, Any]) -> None:
    run(config(tmp_path, **rule, max_steps=10))
    assert run(config(tmp_path, **rule, resume=True)) == 0
    assert violations(tmp_path, None) == []
    assert summary(tmp_path)["steps"] == 20


@pytest.mark.parametrize(("codec", "memory"), [("topk:ratio=0.05", "residual"), ("qsgd:levels=1", "residual")])
def test_what_a_gradient_carried_returns_to_the_residual(codec: str, memory: str) -> None:
    """Check that a payload C(p) which is given back returns to the residual. After a push of p the residual is p - C(p);
    after the return it is p, the sum of all gradients so far.
    """
    ends = loopback_group(2)
    plan = make_plan(
        [Tensor("one.weight", (50, 100)), Tensor("two.weight", (30, 100))], codec, group_by="layer", min_compress_bytes=0
    )
    pushed = np.random.default_rng(4).standard_normal((2, 8000)).astype(np.float32)
    scheme = resolve(Config(scheme="dense", codec=codec, feedback="ef"))
    current = np.empty(8000, np.float32)
    sender = GradientSender(
        Coding(plan, scheme),
        FrameChannel(ends[1]),
        [[0]] * len(plan.groups),
        Given(current),  # type: ignore[arg-type]
        seed=1,
        lr=lambda step: 0.1,
        steps_per_epoch=9,
    )
    try:
        for step, gradient in enumerate(pushed, 1):
            current[:] = gradient
            sender.begin(Round.after(step - 1), measure=False)
            for group in plan.groups:
                sender.push(group.index)
            sender.drain()
            sender.give_back(step, [0])
            sender.give_back(step, [0])  # has no effect, since this step was given back already
            sender.give_back(step - 1, [1])  # has no effect, since this is another step
            state = sender.state()
            first, second = plan.groups
            residuals = [state[f"feedback/{memory}/{name}.weight"].numpy() for name in ("one", "two")]
            np.testing.assert_allclose(residuals[0], pushed[:step, first.start : first.stop].sum(0), rtol=1e-5, atol=1e-5)
            assert not np.allclose(residuals[1], pushed[:step, second.start : second.stop].sum(0), atol=1e-2)
    finally:
        sender.close()


@pytest.mark.long
@pytest.mark.serial
def test_a_slowed_worker_does_not_hold_up_k_of_n(launched: Callable[..., Any], tmp_path: Path) -> None:
    rule = ["--consistency", "kofn", "--num-aggregate", "2", "--max-steps", "60", "--record-history", "--feedback", "ef"]
    gate = tmp_path / "gate"
    job = launched(3, *rule, *halting.flags(10, gate))
    job.wait_for_step(3)
    with slowed(job.pid(2), 10):
        gate.touch()
        job.wait_for_step(50)
    code, out = job.end()
    assert code == 0, out
    assert violations(job.train_dir) == []
    groups = [group for line in versions(job.train_dir) for group in line["groups"]]
    assert all(len(group) == 2 for group in groups)
    shares = {rank: sum(rank == who for group in groups for who, _, _ in group) / len(groups) for rank in (1, 2, 3)}
    assert shares[2] == min(shares.values())
    assert sum(record["dropped"] for record in job.records()) > 0
