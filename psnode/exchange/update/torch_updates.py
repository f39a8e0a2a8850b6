"""torch's optimizers that work coordinate by coordinate.

A rank that updates weights has one of them for each of its groups, over ranges of coordinates.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import nn

from psnode.codecs.arrays import Floats
from psnode.exchange.update.updates import ParamGroup, Stretch, Tensors, Update
from psnode.plans.groups import Plan
from psnode.records import state_names
from psnode.records.state_names import ConstantRange
from psnode.tasks.optimizers import COORDINATEWISE, arguments, memories_of


class _ParameterRange(NamedTuple):
    """Coordinates [start, stop) of one parameter group, which an optimizer sees as one parameter.

    `counts`: the step counts of these coordinates, by name.
    """

    start: int
    stop: int
    param_group: int
    counts: Mapping[str, float]
    parameter: nn.Parameter


class TorchUpdate(Update):
    """Update by an optimizer of COORDINATEWISE. The coordinates of a range share their step counts and their learning rate."""

    def __init__(
        self, weights: torch.Tensor, plan: Plan, param_groups: Sequence[ParamGroup], parts: Mapping[int, Sequence[Stretch]]
    ) -> None:
        super().__init__(weights, plan, param_groups, parts)
        self._kind = COORDINATEWISE[param_groups[0].config.optimizer]
        begin = {name: value for param_group in param_groups for name, value in memories_of(param_group.config).items()}
        self.memories = {name: torch.full((plan.size,), value) for name, value in begin.items()}
        self.ranges: dict[int, list[_ParameterRange]] = {}  # by group
        self.optimizers: dict[int, torch.optim.Optimizer | None] = {}
        self._begin({name: [ConstantRange(0, plan.size, value)] for name, value in self._kind.counts.items()})

    def _begin(self, counts: Mapping[str, Sequence[ConstantRange]]) -> None:
        """Create the optimizers. `counts`: by name of a step count, its values for ranges of coordinates."""
        self.ranges = {group: [each for part in parts for each in self._cut(part, counts)] for group, parts in self.parts.items()}
        self.optimizers = {group: self._over(ranges) if ranges else None for group, ranges in self.ranges.items()}
        for group, optimizer in self.optimizers.items():
            for each in self.ranges[group] if optimizer is not None else ():
                numbers = {name: torch.tensor(float(value)) for name, value in each.counts.items()}
                vectors = {name: vector[each.start : each.stop] for name, vector in self.memories.items()}
                optimizer.state[each.parameter] = {**numbers, **vectors}  # type: ignore[union-attr]

    def _cut(self, part: Stretch, counts: Mapping[str, Sequence[ConstantRange]]) -> Iterator[_ParameterRange]:
        """Yield `part` in pieces, each of which has the same counts at all its coordinates."""
        pieces: list[tuple[ConstantRange, dict[str, float]]] = [(ConstantRange(part.start, part.stop, 0), {})]
        for name, runs in counts.items():
            pieces = [(run, {**had, name: run.value}) for piece, had in pieces for run in state_names.within(runs, piece)]
        for run, had in pieces:
            yield _ParameterRange(run.start, run.stop, part.param_group, had, nn.Parameter(self.weights[run.start : run.stop]))

    def _over(self, ranges: Sequence[_ParameterRange]) -> torch.optim.Optimizer:
        groups = []
        for index in sorted({each.param_group for each in ranges}):
            config, momentum, factor = self.param_groups[index]
            members = [each.parameter for each in ranges if each.param_group == index]
            groups.append({"params": members, "factor": factor, **arguments(config, momentum)})
        return self._kind.make(groups, lr=self.param_groups[0].config.lr or 0.0, foreach=False)  # type: ignore[call-arg]

    def step(self, group: int, total: Floats, factor: float, lr: float, idle: Sequence[slice]) -> None:
        """Take a step on a group. Its `idle` ranges do not change, but the step is included in their step counts."""
        optimizer, begin = self.optimizers[group], self.groups[group].start
        if optimizer is None:
            return
        with self._unmoved(group, idle):
            gradient = torch.from_numpy(total)
            gradient = gradient.mul_(factor) if factor != 1 else gradient
            for each in optimizer.param_groups:
                each["lr"] = lr * each["factor"]
            for part in self.ranges[group]:
                part.parameter.grad = gradient[part.start - begin : part.stop - begin]
            optimizer.step()
            optimizer.zero_grad()
            total[:] = 0

    @contextlib.contextmanager
    def _unmoved(self, group: int, idle: Sequence[slice]) -> Iterator[None]:
        """Return a context that restores weights and memories in the `idle` ranges when it ends."""
        vectors = self.memory(group)
        before = [[vector[part].clone() for part in idle] for vector in vectors]
        yield
        for vector, values in zip(vectors, before, strict=True):
            for part, value in zip(idle, values, strict=True):
                vector[part] = value

    def state(self) -> Tensors:
        """Return views of the memories, and copies of the step counts."""
        found = super().state()
        for name in self._kind.counts:
            runs = [
                ConstantRange(each.start, each.stop, optimizer.state[each.parameter][name].item())
                for group, optimizer in self.optimizers.items()
                if optimizer is not None
                for each in self.ranges[group]
            ]
            found |= {f"{name}/{key}": value for key, value in state_names.spread(self.plan, runs, torch.float32).items()}
        return found

    def load(self, optimizer: Tensors) -> None:
        super().load(optimizer)
        if optimizer:
            self._begin({name: state_names.collected(self.plan, optimizer, f"{name}/") for name in self._kind.counts})

    def _counts(self, name: str) -> bool:
        return name in self._kind.counts
