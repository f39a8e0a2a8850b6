"""Learning from back-propagation when a gradient is finished."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from psnode.errors import ConfigurationError
from psnode.plan import Plan


class GroupHooks:
    """Calls `finished(index)` once a backward pass for every group, as soon as its last gradient is accumulated.

    Before that `collect(name)` is called for every parameter in the group, when its own gradient is there. Between `arm` and
    `flush` only: backward passes of a step before its last are not looked at. Parameters that the loss does not depend on
    are collected, and their groups reported, by `flush`.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        plan: Plan,
        collect: Callable[[str], None],
        finished: Callable[[int], None],
    ) -> None:
        self._collect = collect
        self._finished = finished
        self._members = _groups_of_tensors(plan)
        self._sizes = [0] * len(plan.groups)
        for groups in self._members.values():
            for index in groups:
                self._sizes[index] += 1
        self._missing: list[int] = []
        self._uncollected: set[str] = set()
        self._handles = [_on_accumulated(parameters[name], self._hook(name)) for name in self._members]

    def arm(self) -> None:
        """Watch the next backward pass."""
        self._missing = list(self._sizes)
        self._uncollected = set(self._members)

    def flush(self) -> None:
        """The backward pass is over: collect what is left and report the groups that are not complete, stop watching."""
        for name in [name for name in self._members if name in self._uncollected]:
            self._take(name)
        self._missing = []

    def remove(self) -> None:
        """Take the hooks off the parameters."""
        for handle in self._handles:
            handle.remove()

    def _hook(self, name: str) -> Callable[[torch.Tensor], None]:
        def hook(parameter: torch.Tensor) -> None:
            if name in self._uncollected:
                self._take(name)

        return hook

    def _take(self, name: str) -> None:
        self._uncollected.discard(name)
        self._collect(name)
        for index in self._members[name]:
            self._missing[index] -= 1
            if self._missing[index] == 0:
                self._finished(index)


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
