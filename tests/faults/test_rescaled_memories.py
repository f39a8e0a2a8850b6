"""ef:rescale=true keeps memories in units of weights while the learning rate changes, even if a worker skips versions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from psnode.config import Config
from psnode.config.resolve import resolve
from psnode.exchange.sender import GradientSender
from psnode.jobs.job import run
from psnode.plans.coding import Coding
from psnode.plans.groups import Plan
from psnode.protocol.channel import FrameChannel
from psnode.protocol.messages import Ready
from psnode.protocol.round import Round
from psnode.records import checkpoint, tensorfile
from psnode.records.metrics import read_records
from psnode.records.redistribution import resharded
from psnode.task import Task
from psnode.transport.loopback import loopback_group
from tests.exchange.given import Given

SIZE = 4000
KEPT = 400  # a tenth of the coordinates


def lr(step: int) -> float:
    """Return the learning rate, which changes by a constant factor per step."""
    return 0.1 * 0.8**step


@pytest.fixture
def given() -> Given:
    return Given(np.zeros(SIZE, np.float32))


@pytest.fixture
def sender(given: Given) -> Iterator[GradientSender]:
    plan = Plan.from_dict({"tensors": [["a", [40, 100]]], "groups": [[["topk:ratio=0.1", 0, [SIZE]]]]})
    scheme = resolve(Config(scheme="topk:ratio=0.1", feedback="ef:rescale=true"))
    link = FrameChannel(loopback_group(2)[1])
    sender = GradientSender(Coding(plan, scheme), link, [[0]], given, seed=1, lr=lr, steps_per_epoch=9)  # type: ignore[arg-type]
    yield sender
    sender.close()


def sent(sender: GradientSender, step: int) -> np.ndarray:
    """Push, and return the memory in units of gradients at the step's rate. The array follows later changes of the memory."""
    memory = sender.state()["feedback/residual/a"].numpy()
    sender.begin(Round.after(step - 1), measure=False)
    sender.push(0)
    sender.drain()
    return memory


@pytest.mark.parametrize("steps", [[1, 2, 3, 4], [1, 2, 5, 9, 10, 17], [3, 9]], ids=str)
def test_a_memory_is_rescaled_from_the_last_step_its_worker_took(sender: GradientSender, given: Given, steps: list[int]) -> None:
    """Compare the memory with e + lr g in float64, of which the largest tenth is sent and the rest is kept. Step t has the
    rate lr(t - 1).
    """
    rng, owed = np.random.default_rng(2), np.zeros(SIZE)
    for step in steps:
        given.vector[:] = rng.standard_normal(SIZE)
        owed += lr(step - 1) * given.vector.astype(np.float64)
        memory = sent(sender, step)
        owed[np.argsort(-np.abs(owed))[:KEPT]] = 0
        np.testing.assert_allclose(lr(step - 1) * memory, owed, rtol=0, atol=1e-6)


def test_what_was_not_used_is_owed_in_weights_too(sender: GradientSender, given: Given) -> None:
    """Check the memory if, as under kofn, the worker skips steps and gets back gradients that arrive too late."""
    rng, owed = np.random.default_rng(3), np.zeros(SIZE)
    for step, used in [(1, True), (2, False), (5, True), (8, False), (9, True)]:
        given.vector[:] = rng.standard_normal(SIZE)
        owed += lr(step - 1) * given.vector.astype(np.float64)
        memory = sent(sender, step)
        if used:
            owed[np.argsort(-np.abs(owed))[:KEPT]] = 0
        else:
            sender.give_back(step, [0])
        np.testing.assert_allclose(lr(step - 1) * memory, owed, rtol=0, atol=1e-6)


def test_a_step_that_is_not_finite_leaves_what_is_owed(sender: GradientSender, given: Given) -> None:
    given.vector[:] = np.random.default_rng(4).standard_normal(SIZE)
    before = lr(0) * sent(sender, 1).astype(np.float64)
    given.vector[700] = np.nan
    sent(sender, 2)
    given.vector[:] = 0
    after = lr(2) * sent(sender, 3)
    before[np.argsort(-np.abs(before))[:KEPT]] = 0
    np.testing.assert_allclose(after, before, rtol=0, atol=1e-6)


def test_a_memory_goes_on_from_a_checkpoint_in_its_own_units(sender: GradientSender, given: Given) -> None:
    given.vector[:] = np.random.default_rng(5).standard_normal(SIZE)
    sent(sender, 4)
    saved = {name: value.clone() for name, value in sender.state().items()}
    whole = sent(sender, 9).copy()
    sender.load_state(saved)
    assert np.array_equal(sent(sender, 9), whole)


class Linear(Task):
    """A task whose every gradient is the same vector, so that pushes follow from the versions of their gradients."""

    def model(self) -> torch.nn.Module:
        return torch.nn.Linear(100, 40, bias=False)

    def train_data(self) -> Any:
        return self

    eval_data = train_data

    def __len__(self) -> int:
        return 1000

    def batch(self, indices: np.ndarray, rng: np.random.Generator | None) -> torch.Tensor:
        return torch.from_numpy(direction())

    def loss(self, model: torch.nn.Module, batch: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return (model.weight * batch.reshape(40, 100)).sum(), None

    def size(self, batch: torch.Tensor) -> int:
        return 1


def direction() -> np.ndarray:
    return np.random.default_rng(6).standard_normal(SIZE).astype(np.float32)


def tensors(folder: Path, file: str = checkpoint.MODEL) -> dict[str, torch.Tensor]:
    newest = checkpoint.latest(folder)
    assert newest is not None
    return checkpoint.Checkpoint.open(newest).tensors(file)


@pytest.mark.parametrize("rule", [{"consistency": "asp"}, {"consistency": "ssp", "staleness": 2}], ids=str)
def test_a_stale_gradient_is_applied_with_the_learning_rate_of_its_own_version(tmp_path: Path, rule: dict[str, Any]) -> None:
    """Compare the weights with those computed from the history in float64, where version t has the learning rate .1 (1 -
    t/30)^2.
    """
    settings: dict[str, Any] = {"scheme": "topk:ratio=0.1", "feedback": "ef:rescale=true", "downlink": "dense", "momentum": 0.0}
    settings |= {"lr": 0.1, "lr_schedule": "poly", "lr_power": 2.0, "max_steps": 30, "batch_size": 4, "local": 3, "threads": 1}
    run(Config(train_dir=tmp_path, **settings, **rule, record_history=True, tensorboard=False, deadline=60.0), Linear())
    torch.manual_seed(1)
    weights = Linear().model().state_dict()["weight"].reshape(-1).double().numpy()
    memories, stale = {rank: np.zeros(SIZE) for rank in (1, 2, 3)}, 0
    for line in read_records(tmp_path / "history.jsonl"):
        [added] = line.get("groups", [[]])
        for rank, _, based in added:
            memory = memories[rank]
            memory += 0.1 * (1 - based / 30) ** 2 * direction()
            largest = np.argsort(-np.abs(memory))[:KEPT]
            weights[largest] -= memory[largest] / len(added)
            memory[largest] = 0
            stale += based < line["step"] - 1
    assert stale
    np.testing.assert_allclose(tensors(tmp_path)["weight"].reshape(-1).numpy(), weights, rtol=0, atol=2e-5)


def test_memories_of_workers_at_different_steps_are_dealt_by_what_they_owe(tmp_path: Path) -> None:
    """Check that dealing keeps the mean over the workers of learning rate x memory."""
    folder = tmp_path / "step-00000001"
    folder.mkdir()
    for rank, (rate, owed) in enumerate([(0.1, 3.0), (0.2, 1.0)], 1):
        values = {"feedback/residual/a": torch.full((8,), owed), "feedback/rate/a": torch.tensor([rate], dtype=torch.float64)}
        tensorfile.write_tensors(folder / checkpoint.worker_file(rank), values)

    class Found:
        """The parts of a checkpoint that are read."""

        facts = {"files": [checkpoint.worker_file(rank) for rank in (1, 2)]}
        layout = checkpoint.LAYOUT

        def tensors(self, name: str) -> dict[str, torch.Tensor]:
            return {} if name == checkpoint.MODEL else tensorfile.parse((folder / name).read_bytes(), name)

    dealt = tensorfile.parse(resharded(Found(), Ready([], None, 0, True)), "dealt")  # type: ignore[arg-type]
    owed = dealt["feedback/rate/a"].double() * dealt["feedback/residual/a"].double()
    assert owed.numpy() == pytest.approx((0.1 * 3 + 0.2 * 1) / 2)
