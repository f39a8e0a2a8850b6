"""A master that uses only the shard's handle: a run with groups in two shards equals a run with one shard, bit for bit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pytest
import torch
from torch import nn

import psnode.master
from psnode import run
from psnode.codecs.arrays import Floats
from psnode.config import Config
from psnode.exchange.shard.handle import ShardHandle
from psnode.exchange.shard.shard import Shard
from psnode.exchange.shard.state import ShardState
from psnode.exchange.update.served_model import ServedModel
from psnode.exchange.update.weight_vector import WeightsWithoutModel
from psnode.plans.coding import Coding
from psnode.plans.part import PlanPart, part_of
from psnode.protocol.round import Round
from psnode.protocol.wire import Frame
from psnode.records import checkpoint
from psnode.records.checkpoint import Checkpoint
from tests.kinds.models import CLASSES, WIDTH
from tests.kinds.task import Trains


class Halves:
    """A ShardHandle for two shards, one with the groups of even and one with those of odd numbers."""

    on_host: Sequence[str] = ()
    leads_own_sgd = False
    needs_all = is_remote = False
    readmits = True

    def __init__(
        self, coding: Coding, groups: Iterable[int], config: Config, whole: ServedModel, *rest: Any, **more: Any
    ) -> None:
        numbers, plan = list(groups), coding.plan
        assert len(numbers) > 2
        self.plan, self.whole, self.parts = plan, whole, [part_of(plan, numbers[first::2]) for first in (0, 1)]
        self.shards = [
            Shard(coding, part.groups, config, WeightsWithoutModel(part.own, self._taken(part, whole.vector)), *rest, **more)
            for part in self.parts
        ]

    def _taken(self, part: PlanPart, vector: torch.Tensor) -> torch.Tensor:
        return torch.cat([vector[self.plan.groups[index].start : self.plan.groups[index].stop] for index in part.groups])

    def _together(self, vectors: Iterable[Floats]) -> Floats:
        found = np.empty(self.plan.size, np.float32)
        for part, vector in zip(self.parts, vectors, strict=True):
            for index, group in part.groups.items():
                found[self.plan.groups[index].start : self.plan.groups[index].stop] = vector[group.start : group.stop]
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for shard in self.shards:
            shard.__exit__(kind, error, trace)

    def take_up(self, found: Checkpoint | None) -> None:
        for shard in self.shards:
            shard.take_up(found)

    def hand_out(self, lacking: Iterable[int]) -> None:
        """Do nothing: both shards are in this process."""

    def take(self, frame: Frame) -> object:
        raise AssertionError("both are here")

    def admit(self, ranks: Iterable[int], version: int) -> None:
        ranks = list(ranks)
        for shard in self.shards:
            shard.admit(ranks, version)

    def open(self, now: Round) -> None:
        for shard in self.shards:
            shard.open(now)

    def offer(self, frame: Frame) -> bool:
        return any(shard.offer(frame) for shard in self.shards)

    def keep(self, frame: Frame) -> bool:
        return any(shard.keep(frame) for shard in self.shards)

    def excuse(self, rank: int, version: int) -> None:
        for shard in self.shards:
            shard.excuse(rank, version)

    leave_out = excuse

    def withdraw(self, rank: int) -> dict[int, int]:
        return {group: step for shard in self.shards for group, step in shard.withdraw(rank).items()}

    def force(self) -> None:
        for shard in self.shards:
            shard.force()

    @property
    def untouched(self) -> bool:
        return all(shard.untouched for shard in self.shards)

    @property
    def unchanged(self) -> bool:
        return all(shard.unchanged for shard in self.shards)

    def behind(self, rank: int) -> frozenset[int]:
        return frozenset()

    @property
    def idle(self) -> frozenset[int]:
        return frozenset.intersection(*(shard.idle for shard in self.shards))

    @property
    def missing(self) -> frozenset[int]:
        return frozenset.union(*(shard.missing for shard in self.shards))

    @property
    def gradient_norm(self) -> float | None:
        return None

    def outlier(self) -> str:
        return "".join(shard.outlier() for shard in self.shards)

    def seconds(self) -> dict[str, float]:
        return self.shards[0].seconds()

    def send_to(self, ranks: Iterable[int]) -> None:
        for shard in self.shards:
            shard.send_to(list(ranks))

    def send_whole(self, ranks: Sequence[int], version: int) -> int:
        return sum(shard.send_whole(ranks, version) for shard in self.shards)

    @property
    def replica(self) -> Floats:
        return self._together(shard.replica for shard in self.shards)

    def _gather(self) -> None:
        """Copy x from the shards into the model."""
        self.whole.vector.copy_(torch.from_numpy(self._together(shard._weights.vector.numpy() for shard in self.shards)))

    def digest(self) -> str:
        self._gather()
        return self.whole.digest()

    def state(self) -> ShardState:
        """Return copies of the state, which later versions do not change."""
        self._gather()
        states = [shard.state() for shard in self.shards]
        memories = {name: value.clone() for state in states for name, value in state.optimizer.items()}
        replica = {name: value.clone() for state in states for name, value in state.replica.items()}
        model = {name: value.clone() for name, value in self.whole.state().items()}
        return ShardState(model, memories, replica, {})

    def memory(self) -> list[list[torch.Tensor]]:
        return [[] for _ in self.plan.groups]

    def before_change(self, tell: Callable[[int], None]) -> None:
        for shard in self.shards:
            shard.before_change(tell)

    @property
    def runs_own_code(self) -> bool:
        return False

    def norms(self) -> dict[str, torch.Tensor]:
        return {}

    def facts(self) -> dict[str, float]:
        return {}

    def waiting(self) -> dict[str, torch.Tensor]:
        return {name: value for shard in self.shards for name, value in shard.waiting().items()}


HANDLE: type[ShardHandle] = Halves


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 24), nn.Tanh(), nn.Linear(24, 16), nn.Tanh(), nn.Linear(16, CLASSES))


@pytest.mark.parametrize(
    "settings",
    [
        {"scheme": "dense", "momentum": 0.9},
        {"scheme": "qsgd", "optimizer": "adam", "lr": 0.01, "min_compress_bytes": 0},
        {"scheme": "topk:ratio=0.1", "min_compress_bytes": 0},
    ],
    ids=lambda settings: settings["scheme"],
)
def test_a_run_of_two_shards_is_that_of_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings: dict[str, Any]) -> None:
    def trained(folder: Path, steps: int, *, resume: bool = False) -> tuple[str, dict[str, torch.Tensor]]:
        known: dict[str, Any] = {"lr": 0.05, "seed": 3, "batch_size": 8, "local": 2, "tensorboard": False, "threads": 1}
        known |= {"group_by": "layer", "norm_cap": 0.0, "hash_every": 2, **settings}
        assert run(Trains(network, 16), Config(train_dir=folder, max_steps=steps, resume=resume, **known)) == 0
        newest = checkpoint.latest(folder)
        assert newest is not None
        summary = json.loads((folder / "summary.json").read_text())
        return summary["model_hash"], Checkpoint.open(newest).tensors(checkpoint.OPTIMIZER)

    one, memories = trained(tmp_path / "one", 6)
    monkeypatch.setattr(psnode.master, "Shard", Halves)
    two, others = trained(tmp_path / "two", 3)
    assert one != two
    two, others = trained(tmp_path / "two", 6, resume=True)
    assert one == two
    assert memories.keys() == others.keys() and all(torch.equal(value, others[name]) for name, value in memories.items())
