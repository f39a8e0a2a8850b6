"""Learning from back-propagation when a gradient is finished."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from psnode.errors import ConfigurationError
from psnode.plan import Plan


class GroupHooks:
    """Calls `finished(index)` once a backward pass for every group, as soon as its last gradient is accumulated.

    Between `arm` and `flush` only: backward passes of a step before its last are not looked at. Groups with
    parameters that the loss does not depend on are reported by `flush`; their gradients are what they were
    before the pass (zeros).
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], plan: Plan, finished: Callable[[int], None]) -> None:
        self._finished = finished
        self._members = _groups_of_tensors(plan)
        self._sizes = [0] * len(plan.groups)
        for groups in self._members.values():
            for index in groups:
                self._sizes[index] += 1
        self._missing: list[int] = []
        self._handles = [_on_accumulated(parameters[name], self._hook(groups)) for name, groups in self._members.items()]

    def arm(self) -> None:
        """Watch the next backward pass."""
        self._missing = list(self._sizes)

    def flush(self) -> None:
        """The backward pass is over: report the groups that are not complete, stop watching."""
        missing, self._missing = self._missing, []
        for index, count in enumerate(missing):
            if count > 0:
                self._finished(index)

    def remove(self) -> None:
        """Take the hooks off the parameters."""
        for handle in self._handles:
            handle.remove()

    def _hook(self, groups: Iterable[int]) -> Callable[[torch.Tensor], None]:
        def hook(parameter: torch.Tensor) -> None:
            if not self._missing:
                return
            for index in groups:
                self._missing[index] -= 1
                if self._missing[index] == 0:
                    self._finished(index)

        return hook


def _on_accumulated(parameter: nn.Parameter, hook: Callable[[torch.Tensor], None]) -> RemovableHandle:
    handle: RemovableHandle = parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
    return handle


def _groups_of_tensors(plan: Plan) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for name, where in plan.slices().items():
        found[name] = [
            group.index
            for group in plan.groups
            if (group.start < where.stop and where.start < group.stop) or (where.start == where.stop == group.start)
        ]
    return found


def finish_order(parameters: Mapping[str, nn.Parameter], backward: Callable[[], None]) -> list[str]:
    """The names of `parameters` in the order in which `backward` finishes their gradients, unused ones last.

    Gradients are cleared afterwards. ConfigurationError for sparse gradients.
    """
    order: list[str] = []

    def hook(name: str) -> Callable[[torch.Tensor], None]:
        def record(parameter: torch.Tensor) -> None:
            if parameter.grad is not None and parameter.grad.layout is not torch.strided:
                raise ConfigurationError(f"parameter {name} has sparse gradients: use a dense embedding (sparse=False)")
            if name not in seen:
                seen.add(name)
                order.append(name)

        return record

    seen: set[str] = set()
    handles = [_on_accumulated(parameter, hook(name)) for name, parameter in parameters.items()]
    try:
        backward()
    finally:
        for handle in handles:
            handle.remove()
        for parameter in parameters.values():
            parameter.grad = None
    return order + [name for name in parameters if name not in seen]
