"""Optimizers of the master: coordinate by coordinate, over the ranges of groups and parameter groups."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

import torch

from psnode.codecs.arrays import Floats
from psnode.config import Config
from psnode.errors import CheckpointError
from psnode.exchange.shard.sgd import descend, descend_beside
from psnode.feedback import Gathering
from psnode.plan.groups import Plan
from psnode.records import layout

Tensors = dict[str, torch.Tensor]
_VELOCITY = "momentum_buffer"  # as torch calls it
_NOTHING = torch.zeros(0)


class Pace(NamedTuple):
    """Settings of the parameters of one parameter group; their learning rate is `factor` times that of the run."""

    config: Config
    momentum: float
    factor: float = 1.0


class Stretch(NamedTuple):
    """Coordinates [start, stop) of the flat vector, within one group, that go by the same pace: number `pace`."""

    start: int
    stop: int
    pace: int


def stretches(plan: Plan, paces: Mapping[str, int]) -> list[list[Stretch]]:
    """For each group its coordinates, in order, by the pace of the tensor that they belong to; 0 where `paces` name none."""
    found = []
    for inside in layout.overlaps(plan, plan.groups):
        parts: list[Stretch] = []
        for name, where in inside.items():
            pace = paces.get(name, 0)
            if parts and parts[-1].pace == pace:
                parts[-1] = parts[-1]._replace(stop=where.stop)
            else:
                parts.append(Stretch(where.start, where.stop, pace))
        found.append(parts)
    return found


class Update(ABC):
    """Moves `weights`, flat in the order of the plan, a group at a time, and keeps the optimizer's memories."""

    def __init__(self, weights: torch.Tensor, plan: Plan, paces: Sequence[Pace], parts: Sequence[Sequence[Stretch]]) -> None:
        self.weights = weights
        self.plan = plan
        self.paces = paces
        self.parts = parts
        self.memories: Tensors = {}

    @abstractmethod
    def step(self, group: int, total: Floats, factor: float, lr: float, idle: Sequence[slice]) -> None:
        """One step on a group with the gradient factor * `total`; clears `total`. Nothing moves in the `idle` ranges."""

    def state(self) -> Tensors:
        """The memories, named by memory and tensor (psnode.records.layout): views."""
        places = layout.places(self.plan)
        return {f"{name}/{key}": vector[where] for name, vector in self.memories.items() for key, where in places.items()}

    def memory(self, group: int) -> list[torch.Tensor]:
        """The memory that `step` changes of a group: weights and memories."""
        where = slice(self.plan.groups[group].start, self.plan.groups[group].stop)
        return [vector[where] for vector in (self.weights, *self.memories.values())]

    def load(self, optimizer: Tensors) -> None:
        """Put the contents of `state` in place. CheckpointError if they do not fit.

        A memory that is lacking altogether, of a run that was never updated, stays as it is.
        """
        places = layout.places(self.plan)
        for key, value in optimizer.items():
            name, _, tensor = key.partition("/")
            where = places.get(tensor, slice(0, 0))
            if self._counts(name) and tensor in places:
                continue
            if name not in self.memories or value.dim() != 1 or value.numel() != where.stop - where.start or not value.numel():
                raise CheckpointError(f"the checkpoint's optimizer does not fit this run's: {key[:200]}")
            self.memories[name][where] = value
        if lacking := [key for key in self.state() if optimizer and key not in optimizer]:
            raise CheckpointError(f"the checkpoint's optimizer does not fit this run's: {lacking[0][:200]} is missing")

    def _counts(self, name: str) -> bool:
        """True if memory `name` is one number for a range."""
        return False


class Descent(Update):
    """SGD in one pass of psnode's own, with torch's results (psnode.exchange.shard.sgd).

    `gathering`: the momentum that the senders have gathered their gradients into, which weight decay then has here.
    """

    def __init__(
        self,
        weights: torch.Tensor,
        plan: Plan,
        paces: Sequence[Pace],
        parts: Sequence[Sequence[Stretch]],
        gathering: Gathering | None,
    ) -> None:
        super().__init__(weights, plan, paces, parts)
        self._steps = [_descent(pace, gathering) for pace in paces]
        if any(pace.momentum or (gathering is not None and pace.config.weight_decay) for pace in paces):
            self.memories = {_VELOCITY: torch.zeros(plan.size)}

    def step(self, group: int, total: Floats, factor: float, lr: float, idle: Sequence[slice]) -> None:
        begin, x, velocity = self.plan.groups[group].start, self.weights.numpy(), self.memories.get(_VELOCITY, _NOTHING).numpy()
        for each, part in moving(begin, total.size, self.parts[group], idle):
            where, rate = slice(begin + part.start, begin + part.stop), lr * self.paces[each.pace].factor
            self._steps[each.pace](x[where], velocity[where], total[part], factor=factor, lr=rate)
        for part in idle:
            total[part] = 0


def _descent(pace: Pace, gathering: Gathering | None) -> Callable[..., None]:
    config, momentum, _ = pace
    if gathering is not None and config.weight_decay != 0:
        decay = gathering.gain * config.weight_decay
        return partial(descend_beside, decay=decay, momentum=gathering.momentum, nesterov=gathering.nesterov)
    return partial(descend, momentum=momentum, weight_decay=config.weight_decay, nesterov=config.nesterov)


class _Range(Protocol):
    @property
    def start(self) -> int: ...
    @property
    def stop(self) -> int: ...


R = TypeVar("R", bound=_Range)


def moving(begin: int, size: int, ranges: Iterable[R], idle: Sequence[slice]) -> Iterator[tuple[R, slice]]:
    """The parts of `ranges` that `idle`, in ascending order, leaves, each with its range: counted from `begin`, below `size`."""
    for part in _between(idle, size):
        for each in ranges:
            first, last = max(part.start, each.start - begin), min(part.stop, each.stop - begin)
            if first < last:
                yield each, slice(first, last)


def _between(idle: Sequence[slice], size: int) -> list[slice]:
    """The ranges of 0..size-1 that `idle` leaves."""
    edges = [0, *(edge for part in idle for edge in (part.start, part.stop)), size]
    return [slice(start, stop) for start, stop in zip(edges[::2], edges[1::2], strict=True) if start < stop]
