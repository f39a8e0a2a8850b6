"""Rehearsed steps leave the model unchanged."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from psnode.config import Config
from psnode.jobs.job import run
from psnode.protocol.messages import Start
from psnode.task import Batch
from psnode.worker.handshake import WorkerContext
from tests.kinds import models
from tests.kinds.task import Trains


class Rehearsing(WorkerContext):
    """A context whose worker takes two forward passes."""

    def worker(self, start: Start) -> Any:
        def take_steps() -> None:
            for _ in range(2):
                self.model(torch.ones(3, models.WIDTH))
            self.model.get_parameter("inner.weight").data.add_(1)

        receiver = SimpleNamespace(assume=lambda step: None)
        return SimpleNamespace(receiver=receiver, take_steps=take_steps, close=lambda: None)


def test_buffers_and_attributes_are_those_from_before_a_rehearsal(tmp_path: Path) -> None:
    start = cast(Start, SimpleNamespace(step=0, last_step=2))
    for first in (None, torch.ones(1)):
        model = models.Masked(first, persistent=False)
        weight = model.inner.weight.detach().clone()
        unused: Any = None
        config = Config(train_dir=tmp_path)
        context = Rehearsing(unused, config, unused, None, torch.device("cpu"), model, unused, unused, unused, unused, patience=1)
        context.rehearse(start)
        assert model.mask is first
        assert model.passes == 0
        assert torch.equal(model.inner.weight, weight)


class Noting(Trains):
    """Records the number of torch's threads in the forward passes."""

    def __init__(self) -> None:
        super().__init__(lambda: nn.Linear(models.WIDTH, models.CLASSES), 16)
        self.threads: set[int] = set()

    def loss(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, Any]:
        self.threads.add(torch.get_num_threads())
        return super().loss(model, batch)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_worker_computes_with_as_many_threads_as_it_is_given(threads: int, tmp_path: Path) -> None:
    task = Noting()
    settings: dict[str, Any] = {"scheme": "dense", "local": 1, "threads": threads, "max_steps": 1, "batch_size": 16}
    assert run(Config(train_dir=tmp_path, tensorboard=False, **settings), task) == 0
    assert task.threads == {threads}
