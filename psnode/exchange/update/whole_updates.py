"""Optimizers that need whole tensors, one per tensor: torch's optimizers, by name, or the task's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from psnode.codecs.arrays import Floats
from psnode.errors import CheckpointError, ConfigurationError, in_one_line
from psnode.exchange.update.updates import ParamGroup, Tensors, Update
from psnode.plans.groups import Plan
from psnode.records import state_names
from psnode.tasks.optimizers import made

MakeOptimizer = Callable[[str, nn.Parameter], torch.optim.Optimizer]  # Task.optimizer
_NUMBERS: Mapping[str, type] = {"bool": bool, "int": int, "float": float}  # types of numbers, by the suffix of a memory's name
_OWN = "@"  # prefix of numbers from the optimizer's parameter groups


class _Own(NamedTuple):
    """A tensor and its optimizer.

    `factors`: for each parameter group of the optimizer, its learning rate divided by the run's learning rate.
    """

    name: str
    start: int
    stop: int
    parameter: nn.Parameter
    optimizer: torch.optim.Optimizer
    factors: list[float]
    begun: list[dict[str, Any]]  # the initial numbers in the optimizer's parameter groups


class WholeUpdate(Update):
    """Update by one optimizer per tensor. Each tensor lies in one group. A tensor without a gradient is skipped, as in torch.

    `own`: a function that makes the task's optimizers. If it is None, the settings of a tensor's parameter group determine the
    optimizer. `param_group_of`: the number of this parameter group, by name of the tensor.
    """

    def __init__(
        self,
        weights: torch.Tensor,
        plan: Plan,
        param_groups: Sequence[ParamGroup],
        param_group_of: Mapping[str, int],
        own: MakeOptimizer | None,
    ) -> None:
        super().__init__(weights, plan, param_groups, {})
        shapes = {tensor.name: tensor.shape for tensor in plan.tensors}
        whole = state_names.places(plan)
        self._tensors: dict[int, list[_Own]] = {group.index: [] for group in plan.groups}
        for group, inside in zip(plan.groups, state_names.overlaps(plan, plan.groups), strict=True):
            if cut := [name for name, where in inside.items() if where != whole[name]]:
                raise ConfigurationError(
                    f"--optimizer {param_groups[0].config.optimizer} needs whole tensors, and {cut[0]} is cut"
                )
            for name, where in inside.items():
                parameter = nn.Parameter(weights[where].view(shapes[name]))
                param_group = param_groups[param_group_of.get(name, 0)]
                optimizer, factors = (
                    _made(name, parameter, param_group) if own is None else _taken(name, parameter, param_group, own)
                )
                begun = [_numbers(group) for group in optimizer.param_groups]
                self._tensors[group.index].append(_Own(name, where.start, where.stop, parameter, optimizer, factors, begun))

    @property
    def has_own_sgd(self) -> bool:
        """True if the task has made torch's SGD or ASGD for any tensor."""
        return any(
            isinstance(own.optimizer, torch.optim.SGD | torch.optim.ASGD) for tensors in self._tensors.values() for own in tensors
        )

    def step(self, group: int, total: Floats, factor: float, lr: float, idle: Sequence[slice]) -> None:
        begin, silent = self.groups[group].start, {part.start for part in idle}
        for own in self._tensors[group]:
            if own.start - begin in silent:
                continue
            for each, part in zip(own.optimizer.param_groups, own.factors, strict=True):
                each["lr"] = lr * part
            gradient = torch.from_numpy(total[own.start - begin : own.stop - begin]) * factor
            own.parameter.grad = gradient.view(own.parameter.shape)
            try:
                own.optimizer.step()
            except (TypeError, ValueError, RuntimeError) as error:
                raise ConfigurationError(f"the optimizer of {own.name} cannot take a step: {in_one_line(error)}") from error
            own.parameter.grad = None
            for key, value in own.optimizer.state[own.parameter].items():
                _require_plain(own, key, value)
        total[:] = 0

    def state(self) -> Tensors:
        """Return the memories that the optimizers keep for each tensor, and numbers in the optimizers' parameter groups.

        Of these numbers, only those that have changed since the start are returned, and never the learning rate.
        """
        found = {}
        for own in (each for tensors in self._tensors.values() for each in tensors):
            for key, value in own.optimizer.state.get(own.parameter, {}).items():
                if isinstance(value, torch.Tensor):
                    found[f"{key}/{own.name}"] = value
                elif value is not None:
                    found[f"{key}:{type(value).__name__}/{own.name}"] = torch.tensor(value, dtype=_dtype(value))
            for index, (group, begun) in enumerate(zip(own.optimizer.param_groups, own.begun, strict=True)):
                for key, value in _numbers(group).items():
                    if begun.get(key) != value:
                        found[f"{_OWN}{index}.{key}:{type(value).__name__}/{own.name}"] = torch.tensor(value, dtype=_dtype(value))
        return found

    def memory(self, group: int) -> list[torch.Tensor]:
        kept = (own.optimizer.state.get(own.parameter, {}).values() for own in self._tensors[group])
        return [*super().memory(group), *(value for values in kept for value in values if isinstance(value, torch.Tensor))]

    def load(self, optimizer: Tensors) -> None:
        """Load the result of `state`. Raises CheckpointError for a tensor that this run does not have."""
        named = {own.name: own for tensors in self._tensors.values() for own in tensors}
        for label, value in optimizer.items():
            memory, _, tensor = label.partition("/")
            key, _, kind = memory.partition(":")
            own = named.get(tensor)
            index, _, number = key.removeprefix(_OWN).partition(".")
            if own is None or (key.startswith(_OWN) and not (index.isdecimal() and int(index) < len(own.begun))):
                raise CheckpointError(f"the checkpoint's optimizer does not fit this run's: {label[:200]}")
            content = _NUMBERS[kind](value.item()) if kind in _NUMBERS else value.clone()
            if key.startswith(_OWN):
                own.optimizer.param_groups[int(index)][number] = content
            else:
                own.optimizer.state[own.parameter][key] = content


def _made(name: str, parameter: nn.Parameter, param_group: ParamGroup) -> tuple[torch.optim.Optimizer, list[float]]:
    return made(param_group.config, param_group.momentum, parameter, (param_group.config.lr or 0.0) * param_group.factor), [
        param_group.factor
    ]


def _taken(
    name: str, parameter: nn.Parameter, param_group: ParamGroup, own: MakeOptimizer
) -> tuple[torch.optim.Optimizer, list[float]]:
    """Return the optimizer that the task makes for a tensor, and factors for the learning rates of its parameter groups.

    A factor is the learning rate of a parameter group divided by the run's learning rate.
    """
    optimizer = own(name, parameter)
    held = optimizer.param_groups if isinstance(optimizer, torch.optim.Optimizer) else []
    if [id(each) for group in held for each in group["params"]] != [id(parameter)]:
        raise ConfigurationError(f"Task.optimizer is to return a torch.optim.Optimizer of {name}, which it was given, alone")
    assert param_group.config.lr is not None
    return optimizer, [float(group["lr"]) / param_group.config.lr for group in held]


def _numbers(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers in a parameter group of torch, except the learning rate."""
    return {key: value for key, value in group.items() if key != "lr" and type(value) in _NUMBERS.values()}


def _dtype(value: float) -> torch.dtype:
    return torch.float64 if isinstance(value, float) else torch.bool if isinstance(value, bool) else torch.int64


def _require_plain(own: _Own, key: Any, value: Any) -> None:
    """Raise ConfigurationError for a memory that a checkpoint cannot hold."""
    plain = value is None or isinstance(value, torch.Tensor) or type(value) in _NUMBERS.values()
    if not plain or not isinstance(key, str) or not key.isidentifier():
        raise ConfigurationError(
            f"the optimizer of {own.name} keeps {str(key)[:60]!r}, a {type(value).__name__}: a checkpoint holds tensors and "
            "numbers, under names"
        )
