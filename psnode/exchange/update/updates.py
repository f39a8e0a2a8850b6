"""Optimizers of a shard. Their settings apply to ranges of coordinates, each in one group and one parameter group."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import torch

from psnode.config import Config
from psnode.errors import CheckpointError
from psnode.exchange.update.device_copies import DeviceCopies
from psnode.exchange.update.optimizer_steps import HostSteps, OptimizerSteps
from psnode.feedback import MomentumRule
from psnode.plans.groups import Plan
from psnode.records import state_names

Tensors = dict[str, torch.Tensor]
_VELOCITY = "momentum_buffer"  # torch's name for the velocity


class ParamGroup(NamedTuple):
    """Settings of one parameter group. Its learning rate is `factor` times the learning rate of the run."""

    config: Config
    momentum: float
    factor: float = 1.0


class Stretch(NamedTuple):
    """Coordinates [start, stop) of the flat vector, in one group and in the parameter group with number `param_group`."""

    start: int
    stop: int
    param_group: int


def stretches(plan: Plan, param_groups: Mapping[str, int]) -> dict[int, list[Stretch]]:
    """Return, by group, the coordinates of the group as Stretches, in order. They are cut where the parameter group changes.

    `param_groups`: the number of a tensor's parameter group, by the tensor's name. A tensor whose name is missing has number
    0.
    """
    found = {}
    for group, inside in zip(plan.groups, state_names.overlaps(plan, plan.groups), strict=True):
        parts: list[Stretch] = []
        for name, where in inside.items():
            param_group = param_groups.get(name, 0)
            if parts and parts[-1].param_group == param_group:
                parts[-1] = parts[-1]._replace(stop=where.stop)
            else:
                parts.append(Stretch(where.start, where.stop, param_group))
        found[group.index] = parts
    return found


class Update(ABC):
    """Update of `weights`, flat in the order of the plan, one group at a time, with the optimizer's memories.

    `in_one_pass`: True if psnode's own code takes the steps, so that a device can take them as well.
    """

    in_one_pass: ClassVar[bool] = False

    def __init__(
        self, weights: torch.Tensor, plan: Plan, param_groups: Sequence[ParamGroup], parts: Mapping[int, Sequence[Stretch]]
    ) -> None:
        self.weights = weights
        self.plan = plan
        self.groups = {group.index: group for group in plan.groups}
        self.param_groups = param_groups
        self.parts = parts
        self.memories: Tensors = {}
        self.steps: OptimizerSteps = HostSteps()
        self._device_copies: DeviceCopies | None = None

    @abstractmethod
    def step(self, group: int, total: Any, factor: float, lr: float, idle: Sequence[slice]) -> None:
        """Take one step on a group with the gradient factor * `total`. Then set `total` to 0. The `idle` ranges do not change.

        `total`: an array, or a tensor on the device of the weights.
        """

    def move_to(self, steps: OptimizerSteps, device_copies: DeviceCopies) -> None:
        """From now on, update the `device_copies` of weights and memories with `steps`. Allowed only if `in_one_pass` is True."""
        self.steps, self._device_copies = steps, device_copies

    def vectors(self) -> list[Any]:
        """Return weights and memories, each flat: arrays on the host, or the copies on a device if these are updated instead."""
        homes = (self.weights, *self.memories.values())
        return [home.numpy() if self._device_copies is None else self._device_copies.of(home) for home in homes]

    def state(self) -> Tensors:
        """Return views of the memories, named by memory and tensor (psnode.records.state_names)."""
        places = state_names.places(self.plan)
        return {f"{name}/{key}": vector[where] for name, vector in self.memories.items() for key, where in places.items()}

    def memory(self, group: int) -> list[torch.Tensor]:
        """Return the tensors that `step` changes for a group: weights and memories."""
        where = slice(self.groups[group].start, self.groups[group].stop)
        return [vector[where] for vector in (self.weights, *self.memories.values())]

    def load(self, optimizer: Tensors) -> None:
        """Load the result of `state`. Raises CheckpointError if it does not fit.

        If `optimizer` is empty, as in a run without any update, the memories do not change.
        """
        places = state_names.places(self.plan)
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
        """Return True if memory `name` has one number for each range, instead of one per coordinate."""
        return False


class Descent(Update):
    """Update by SGD in one pass of psnode's own code, with the same results as torch (psnode.exchange.update.sgd).

    `gathering`: the momentum that has gathered gradients at the senders. Weight decay is gathered here with the same momentum.
    """

    in_one_pass = True

    def __init__(
        self,
        weights: torch.Tensor,
        plan: Plan,
        param_groups: Sequence[ParamGroup],
        parts: Mapping[int, Sequence[Stretch]],
        gathering: MomentumRule | None,
    ) -> None:
        super().__init__(weights, plan, param_groups, parts)
        self._gathering = gathering
        if any(
            param_group.momentum or (gathering is not None and param_group.config.weight_decay) for param_group in param_groups
        ):
            self.memories = {_VELOCITY: torch.zeros(plan.size)}

    def step(self, group: int, total: Any, factor: float, lr: float, idle: Sequence[slice]) -> None:
        begin = self.groups[group].start
        x, velocity, *_ = (*self.vectors(), total[:0])
        for each, part in moving(begin, len(total), self.parts[group], idle):
            where, rate = slice(begin + part.start, begin + part.stop), lr * self.param_groups[each.param_group].factor
            self._step(self.param_groups[each.param_group], x[where], velocity[where], total[part], factor, rate)
        for part in idle:
            total[part] = 0

    def _step(self, param_group: ParamGroup, x: Any, velocity: Any, total: Any, factor: float, lr: float) -> None:
        config, momentum, gathering = param_group.config, param_group.momentum, self._gathering
        if gathering is not None and config.weight_decay != 0:
            decay, nesterov = gathering.gain * config.weight_decay, gathering.nesterov
            momentum = gathering.momentum
            self.steps.descend_beside(x, velocity, total, factor=factor, lr=lr, decay=decay, momentum=momentum, nesterov=nesterov)
        else:
            decay, nesterov = config.weight_decay, config.nesterov
            self.steps.descend(x, velocity, total, factor=factor, lr=lr, momentum=momentum, weight_decay=decay, nesterov=nesterov)


class _Range(Protocol):
    @property
    def start(self) -> int: ...
    @property
    def stop(self) -> int: ...


R = TypeVar("R", bound=_Range)


def moving(begin: int, size: int, ranges: Iterable[R], idle: Sequence[slice]) -> Iterator[tuple[R, slice]]:
    """Yield each of `ranges` with each of its parts outside `idle`.

    The parts are slices counted from `begin`, and end at most at `size`. `idle`: slices, counted from `begin`, in ascending
    order.
    """
    for part in _between(idle, size):
        for each in ranges:
            first, last = max(part.start, each.start - begin), min(part.stop, each.stop - begin)
            if first < last:
                yield each, slice(first, last)


def _between(idle: Sequence[slice], size: int) -> list[slice]:
    """Return the slices of 0..size-1 that lie between the slices `idle`."""
    edges = [0, *(edge for part in idle for edge in (part.start, part.stop)), size]
    return [slice(start, stop) for start, stop in zip(edges[::2], edges[1::2], strict=True) if start < stop]
