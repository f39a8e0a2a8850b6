"""Hooks that report during back-propagation that a gradient is finished."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, Protocol

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from psnode.errors import ConfigurationError
from psnode.exchange.gradients import sparse_gradients
from psnode.plans.groups import Plan


class GroupHooks:
    """Calls `finished(index)` once for every group in a backward pass, as soon as the group's last gradient is accumulated.

    Before this call, `collect(name)` is called for each parameter in the group, when the parameter's gradient is ready. The
    hooks act only between `arm` and `flush`, since only the last backward pass of a step completes its gradients. `flush`
    collects the remaining gradients: those of parameters on which the loss does not depend, and those of the parameters in
    `late`, to whose gradients one pass adds more than once.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        plan: Plan,
        collect: Callable[[str], None],
        finished: Callable[[int], None],
        late: Collection[str] = (),
    ) -> None:
        self._parameters = parameters
        self._late = frozenset(late)
        self._collect = collect
        self._finished = finished
        self._members = _groups_of_tensors(plan)
        self._sizes = [0] * len(plan.groups)
        for groups in self._members.values():
            for index in groups:
                self._sizes[index] += 1
        self._missing: list[int] = []
        self._armed = False
        self._uncollected: set[str] = set()
        self.stand_ins: Mapping[str, torch.Tensor] = {}  # by name: replacements of parameters' gradients after collection
        self._replaced: dict[str, torch.Tensor] = {}
        self._handles = [_on_accumulated(parameters[name], self._hook(name)) for name in self._members]

    def arm(self) -> None:
        """Watch the next backward pass."""
        self._missing = list(self._sizes)
        self._uncollected, self._replaced = set(self._members), {}
        self._armed = True

    def flush(self) -> None:
        """Collect the remaining gradients after the backward pass, report the remaining groups and stop watching.

        Raises ConfigurationError that names the parameter if something was added to a gradient after its collection.
        """
        if not self._armed:
            return
        self._armed = False
        if (name := self.added_late) is not None:
            raise ConfigurationError(
                f"parameter {name} got a part of its gradient after the rest was sent, and not so in the first batch: "
                "give checkpoint() use_reentrant=False"
            )
        for name in [name for name in self._members if name in self._uncollected]:
            self._take(name)
        self._missing = []

    @property
    def begun(self) -> bool:
        """True if a gradient was collected since `arm`."""
        return len(self._uncollected) < len(self._members)

    @property
    def added_late(self) -> str | None:
        """The name of the first parameter whose gradient has changed since its collection; None if there is no such parameter."""
        names = (name for name in self._members if name not in self._uncollected)
        return next((name for name in names if self._parameters[name].grad is not self._replaced.get(name)), None)

    @property
    def replaced(self) -> Collection[str]:
        """Names of the parameters whose gradient was replaced by a stand-in since `arm`."""
        return self._replaced

    def remove(self) -> None:
        """Remove the hooks from the parameters."""
        for handle in self._handles:
            handle.remove()

    def _hook(self, name: str) -> Callable[[torch.Tensor], None]:
        def hook(parameter: torch.Tensor) -> None:
            if name in self._uncollected and name not in self._late:
                self._take(name)

        return hook

    def _take(self, name: str) -> None:
        self._uncollected.discard(name)
        parameter = self._parameters[name]
        had_one = parameter.grad is not None
        self._collect(name)
        if had_one and name in self.stand_ins:
            parameter.grad = self._replaced[name] = self.stand_ins[name]
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


class BackwardWatch(Protocol):
    """An observer that is called when a backward pass begins and ends."""

    def arm(self) -> None:
        """Note the beginning of a backward pass."""

    def flush(self) -> None:
        """Note the end of a backward pass."""


class Finish(NamedTuple):
    """The times at which a backward pass finishes gradients.

    `seconds`: by parameter name, in the order in which gradients finish, the seconds from the beginning of the pass. `late`: the
    names of the parameters to whose gradients the pass adds more than once.
    """

    seconds: dict[str, float]
    late: list[str]


class _Stopwatch:
    """Measures the seconds from the beginning of a backward pass until now, or until its end if it is over."""

    def __init__(self) -> None:
        self._begun = time.perf_counter()
        self._ended: float | None = None

    def arm(self) -> None:
        self._begun = time.perf_counter()

    def flush(self) -> None:
        self._ended = time.perf_counter()

    @property
    def seconds(self) -> float:
        return (time.perf_counter() if self._ended is None else self._ended) - self._begun


def finish_times(parameters: Mapping[str, nn.Parameter], backward: Callable[[BackwardWatch], object]) -> Finish:
    """Return the times at which a backward pass finishes the gradients of `parameters`.

    `backward` runs the pass, and calls `arm` and `flush` of the watch that it is given. Unused parameters come last, with
    the seconds of the whole pass. On a GPU, the device is synchronized before each time is taken. A pass may add to a
    gradient more than once: reentrant checkpointing adds to it once for every segment that uses the parameter. Gradients are
    cleared afterwards. Raises ConfigurationError for sparse gradients.
    """
    times: dict[str, int] = {}
    seconds: dict[str, float] = {}
    watch = _Stopwatch()

    def hook(name: str) -> Callable[[torch.Tensor], None]:
        def record(parameter: torch.Tensor) -> None:
            if parameter.grad is not None and parameter.grad.layout is not torch.strided:
                raise sparse_gradients(name)
            if parameter.is_cuda:
                torch.cuda.synchronize(parameter.device)
            times[name] = times.get(name, 0) + 1
            seconds.pop(name, None)
            seconds[name] = watch.seconds

        return record

    handles = [_on_accumulated(parameter, hook(name)) for name, parameter in parameters.items()]
    try:
        backward(watch)
    finally:
        for handle in handles:
            handle.remove()
        for parameter in parameters.values():
            parameter.grad = None
    seconds |= {name: watch.seconds for name in parameters if name not in seconds}
    return Finish(seconds, [name for name in seconds if times.get(name, 0) > 1])
