"""Inspection of a model's use of its weights, by passes that run before the first step and are undone.

Some models cannot be trained if their parameters are views of one vector, which the master fills. Without an error, such a
model would learn something else than in plain PyTorch. Therefore it is refused with the name of the parameter. Other models
use weights in ways that psnode.worker.first_use does not detect; their forward passes have to wait for all weights.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, cast

import torch
from torch import nn

from psnode.errors import ConfigurationError
from psnode.exchange.flat_model import trainable
from psnode.exchange.trained_model import written
from psnode.task import Batch
from psnode.tasks import model_tensors, tensor_names
from psnode.worker.backward_hooks import Finish, finish_times
from psnode.worker.computation import Computation
from psnode.worker.first_use import FirstUse


@dataclass(frozen=True)
class Findings:
    """The result of an inspection.

    `backward` and `late`: the fields `seconds` and `late` of psnode.worker.backward_hooks.Finish. `waits`: the reason why forward
    passes have to wait for all weights; empty if they need not wait.
    """

    backward: dict[str, float] | None
    late: list[str]
    waits: str


def inspect(
    computation: Computation, model: nn.Module, batch: Callable[[int], Batch], *, agreed: Collection[str], early: bool
) -> Findings:
    """Run passes over `batch(1)`, and over `batch(2)` if buffers have changed, and return the findings.

    The model is restored (psnode.tasks.model_tensors.ModelSnapshot). `agreed`: names of the buffers that must be the same on
    all workers. `early`: True if forward passes should begin before their weights have arrived. Raises ConfigurationError for a
    model that would not learn as in plain PyTorch.
    """
    parameters = trainable(model)
    refuse_shared_memory(model)
    snapshot = model_tensors.ModelSnapshot(model)
    before = snapshot.values
    try:
        first = _backward(computation, model, batch(1), before)
        for name, parameter in tensor_names.parameters(model):
            if name in before and not model_tensors.same(parameter, before[name]):
                raise written(name, trained=name in parameters)
        snapshot.restore()
        if moved := [name for name in sorted(first.bits.keys() & set(agreed)) if first.bits[name] != _bytes(before[name])]:
            second = _backward(computation, model, batch(2), before)
            _refuse_buffers_of_data([name for name in moved if second.bits.get(name) != first.bits[name]])
        snapshot.restore()
        reason = unwatchable(model) if early else ""
        passes = _Passes(computation, model, batch(1), parameters, snapshot)
        if early and not reason and not passes.agree_when_weights_are_late():
            reason = "it computed something else in a rehearsal in which weights came late"
        if not early or reason:
            passes.refuse_views_of_old_memory()
    finally:
        snapshot.restore()
    return Findings(*first.finish, reason)


class _Seen(NamedTuple):
    """The observations from a backward pass: the times at which gradients finish, and the bytes of the buffers after the pass."""

    finish: Finish
    bits: dict[str, bytes]


def _backward(computation: Computation, model: nn.Module, batch: Batch, before: Mapping[str, torch.Tensor]) -> _Seen:
    finish = finish_times(trainable(model), lambda watch: computation.run(0, [batch], watch))
    buffers = {name: value for name, value in tensor_names.buffers(model) if name in before}
    return _Seen(finish, {name: _bytes(value) for name, value in buffers.items()})


def _bytes(value: torch.Tensor) -> bytes:
    return bytes(model_tensors.bits(value))


def _refuse_buffers_of_data(names: Sequence[str]) -> None:
    """Raise ConfigurationError for the first of `names`, if there is one.

    These are buffers whose values depend on the data and therefore differ between workers.
    """
    if names:
        raise ConfigurationError(
            f"buffer {names[0]} takes another value with every batch, so that each worker has its own: "
            "say in Task.statistics how a checkpoint is to combine them, or register it with persistent=False"
        )


def unwatchable(model: nn.Module) -> str:
    """Return the reason why uses of weights cannot be detected; empty if no reason is known. Call this after a pass."""
    for module in model.modules():
        if isinstance(module, torch.jit.ScriptModule):
            return "a part of the model is TorchScript"
        if type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None:
            return "the model is compiled"
    if "torch._dynamo.utils" in sys.modules and sys.modules["torch._dynamo.utils"].counters["frames"]:
        return "something is compiled (torch.compile)"
    if scripted_functions():
        return "a function is TorchScript"
    return ""


def scripted_functions() -> set[str]:
    """Return the names of the functions in this process that were compiled to TorchScript."""
    return {function.name for function in cast(Any, torch.jit._state._python_cu).get_functions()}


def refuse_shared_memory(model: nn.Module) -> None:
    """Raise ConfigurationError if two parameters overlap in memory, since they could not be separate parts of one vector."""
    places = []
    for name, parameter in tensor_names.parameters(model):
        if parameter.numel() and parameter.layout is torch.strided:
            last = sum((n - 1) * stride for n, stride in zip(parameter.shape, parameter.stride(), strict=True))
            start = parameter.data_ptr()
            places.append((start, start + (last + 1) * parameter.element_size(), name, parameter.requires_grad))
    for (_, stop, one, trained), (start, _, two, too) in pairwise(sorted(places)):
        if start < stop and (trained or too):
            one, two = sorted((one, two))
            raise ConfigurationError(
                f"parameters {one} and {two} share memory: tie them by assigning the parameter itself (b.weight = a.weight)"
            )


class _Passes:
    """Forward passes with the trainable parameters moved into one vector, as in the run. Their old memory may hold NaN."""

    def __init__(
        self,
        computation: Computation,
        model: nn.Module,
        batch: Batch,
        parameters: Mapping[str, nn.Parameter],
        before: model_tensors.ModelSnapshot,
    ) -> None:
        self._computation, self._model, self._batch = computation, model, batch
        self._parameters, self._before, self._values = parameters, before, before.values

    def agree_when_weights_are_late(self) -> bool:
        """Return True if the loss stays bit-identical although each weight is NaN until FirstUse waits for it.

        The weights are in the same vector in both passes, since rounding in kernels may depend on the alignment of their inputs.
        """
        vector = self._vector()
        with self._moved(vector, []):
            expected = self._loss(None)
        vector.fill_(torch.nan)
        with self._moved(vector, list(self._parameters)):
            watch = FirstUse(self._model, _Late(vector, [self._values[name] for name in self._parameters]), vector)
            try:
                return self._loss(watch) == expected
            finally:
                watch.remove()

    def refuse_views_of_old_memory(self) -> None:
        """Raise ConfigurationError if the model computes with the old memory of its weights."""
        suspects = list(self._parameters)
        if self._unmoved_by_leaving(suspects):
            return
        while len(suspects) > 1:
            half = suspects[: len(suspects) // 2]
            suspects = suspects[len(half) :] if self._unmoved_by_leaving(half) else half
        raise ConfigurationError(
            f"the memory that parameter {suspects[0]} had when the model was built is kept and computed with, but weights move: "
            "take views of a weight (.data, .numpy()) in the forward pass"
        )

    def _unmoved_by_leaving(self, names: Sequence[str]) -> bool:
        """Return True if the loss stays finite when the old memory of the parameters `names` contains NaN."""
        vector = self._vector()
        with self._moved(vector, names):
            return math.isfinite(self._loss(None))

    def _vector(self) -> torch.Tensor:
        return torch.cat([self._values[name].reshape(-1) for name in self._parameters])

    def _loss(self, watch: AbstractContextManager[Any] | None) -> float:
        """Return the loss of a forward pass inside `watch`; NaN if the pass raises."""
        try:
            return self._computation.loss(self._batch, watch)
        except Exception:  # NaN may cause any error
            return math.nan
        finally:
            self._before.restore()

    @contextmanager
    def _moved(self, vector: torch.Tensor, emptied: Sequence[str]) -> Iterator[None]:
        """Make the parameters views of `vector`, and fill the old memory of the parameters `emptied` with NaN, until the exit."""
        old = {name: parameter.data for name, parameter in self._parameters.items()}
        place = 0
        for name, parameter in self._parameters.items():
            parameter.data = vector[place : place + parameter.numel()].view(parameter.shape)
            place += parameter.numel()
            if name in emptied:
                old[name].fill_(torch.nan)
        try:
            yield
        finally:
            for name, parameter in self._parameters.items():
                parameter.data = old[name].copy_(self._values[name])


class _Late:
    """Weights that arrive only when a thread waits for them.

    They are then copied into `vector`, in which the `values` lie one after another.
    """

    missing = frozenset([0])

    def __init__(self, vector: torch.Tensor, values: Sequence[torch.Tensor]) -> None:
        self._vector = vector.detach()
        ends = list(accumulate(value.numel() for value in values))
        self._values = [(end - value.numel(), end, value.reshape(-1)) for end, value in zip(ends, values, strict=True)]

    def require(self, start: int, stop: int) -> None:
        for first, last, value in self._values:
            low, high = max(start, first), min(stop, last)
            if low < high:
                self._vector[low:high] = value[low - first : high - first]
