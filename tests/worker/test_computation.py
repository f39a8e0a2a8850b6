"""Sizes and metrics of a task that cannot be reported: the author gets an error that names them before they are sent."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from psnode.errors import ConfigurationError
from psnode.task import Batch
from psnode.worker.computation import Computation, Outcome, seed_torch
from tests.kinds.models import CLASSES, WIDTH
from tests.kinds.task import Points, Trains


class Counts(Trains):
    """Trains a linear model and reports this batch size and these metrics."""

    def __init__(self, size: Any, metrics: dict[Any, Any]) -> None:
        super().__init__(lambda: nn.Linear(WIDTH, CLASSES), 16)
        self._size, self._metrics = size, metrics

    def size(self, batch: Batch) -> int:
        return self._size  # type: ignore[no-any-return]

    def metrics(self, outputs: Any, batch: Batch) -> dict[str, float]:
        return self._metrics


def passed(size: Any, metrics: dict[Any, Any], batches: int = 2) -> Outcome:
    task = Counts(size, metrics)
    model = task.model()
    computation = Computation(task, model, torch.device("cpu"), rank=1, seed=3, torch_lock=contextlib.nullcontext())
    found = computation.run(1, [Points(16).batch(np.arange(16), None)] * batches, None)
    assert found is not None
    return found


@pytest.mark.parametrize("size", [16, 16.0, np.int64(16), np.float32(16), torch.tensor(16), torch.tensor(16.0), 0])
def test_a_whole_number_of_any_type_counts_examples(size: Any) -> None:
    samples = passed(size, {}).samples
    assert type(samples) is int
    assert samples == 2 * int(size)


@pytest.mark.parametrize("size", [0.5, -1, float("nan"), float("inf"), None, "16", torch.ones(2)])
def test_another_size_is_refused_by_name(size: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"Task\.size must return a whole number of examples"):
        passed(size, {}, batches=1)


@pytest.mark.parametrize(
    ("metrics", "told"),
    [
        ({"good": 1.0, "\x1b[2J": 1.0}, r"\\x1b\[2J"),
        ({("a", 1): 1.0}, r"\('a', 1\)"),
        ({str(i): 1.0 for i in range(100_001)}, "100001 metrics"),
        ({"words": "many"}, "words"),
        ({"pair": torch.ones(2)}, "pair"),
    ],
)
def test_a_metric_that_cannot_be_sent_is_named(metrics: dict[Any, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        passed(16, metrics)


def test_metrics_are_sums_over_batches_of_any_number() -> None:
    metrics: dict[Any, Any] = {"f1\u00a0score": 1.5, 1: torch.tensor(3), "ratio": float("inf")}
    assert passed(16, metrics).metrics == {"f1\u00a0score": 3.0, "1": 6.0, "ratio": float("inf")}


def test_dropout_is_drawn_by_seed_rank_and_step_as_in_runs_of_before() -> None:
    """Check the masks of dropout, which resumed runs must continue: their seed is NumPy's first word of (seed, 2, rank, step)."""
    for seed, rank, step in ((1, 1, 1), (1, 2, 1), (7, 3, 40)):
        seed_torch(seed, rank, step, torch.device("cpu"))
        [expected] = np.random.SeedSequence((seed, 2, rank, step)).generate_state(1, np.uint64)
        assert torch.default_generator.initial_seed() == int(expected)


def computation(*layers: nn.Module) -> Computation:
    """Return the computation of a model of these layers, on Points."""
    task = Trains(lambda: nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES)), 16)
    return Computation(task, task.model(), torch.device("cpu"), rank=1, seed=3, torch_lock=contextlib.nullcontext())


def test_a_loss_alone_is_that_of_step_0_with_its_dropout() -> None:
    found, batch = computation(nn.Dropout(0.5)), Points(16).batch(np.arange(16), None)
    taken = [found.run(step, [batch], None) for step in (0, 1)]
    assert [outcome is not None and outcome.loss == found.loss(batch, None) for outcome in taken] == [True, False]


@pytest.mark.parametrize("batches", [1, 3])
@pytest.mark.parametrize("going", [True, False])
def test_a_step_is_settled_once_behind_its_first_forward_pass(going: bool, batches: int) -> None:
    passes: list[int] = []
    watched = nn.Identity()
    watched.register_forward_hook(lambda *_: passes.append(1))
    asked: list[int] = []

    def settled() -> bool:
        asked.append(len(passes))
        return going

    found = computation(watched).run(1, [Points(16).batch(np.arange(16), None)] * batches, None, settled=settled)
    assert (found is not None, asked, len(passes)) == (going, [1], batches if going else 1)
