"""The forward and backward passes of a step on a worker."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from psnode.errors import ConfigurationError, NonFiniteLossError
from psnode.protocol.messages import unreportable
from psnode.task import Batch, Task
from psnode.tasks import tensor_names
from psnode.tasks.device import autocast, to_device
from psnode.worker.backward_hooks import BackwardWatch
from psnode.worker.reached import Reach

_UNTRAINED = (
    "have Task.model() return both, nn.ModuleList([net, criterion]), which Task.loss is handed; or freeze it, "
    "requires_grad_(False)"
)
_DROPOUT = 2  # separates the seed of torch's generator from other seeds


@dataclass(frozen=True)
class Outcome:
    """The outcome of a worker's passes.

    `loss`: the mean over the passes, or None if the loop reports no loss. `samples`: the number of examples. `metrics`: sums over
    the examples. `seconds`: the duration of the passes.
    """

    loss: float | None
    samples: int
    metrics: dict[str, float]
    seconds: float


def seed_torch(seed: int, rank: int, step: int, device: torch.device) -> None:
    """Seed torch's generators for one step of one worker, so that checkpoints need no generator state for dropout."""
    words = np.random.SeedSequence((seed, _DROPOUT, rank, step)).generate_state(1, np.uint64)
    torch.default_generator.manual_seed(int(words[0]))  # torch.manual_seed seeds all devices, which is 100 times slower
    if device.type == "cuda":
        torch.cuda.default_generators[device.index].manual_seed(int(words[0]))  # seed only the generator of this device


def whole(size: Any) -> int:
    """Return `size`, the result of Task.size, as int. Raises ConfigurationError if it is not a whole number.

    A value of any type is accepted if it equals a whole number.
    """
    try:
        if (found := int(size)) == size:
            return found
    except (TypeError, ValueError, OverflowError, RuntimeError):
        pass
    raise ConfigurationError(unreportable(size, {}))


def number(name: Any, metric: Any) -> float:
    """Return the sum of a metric as float. Raises ConfigurationError with the metric's name if it is not a number."""
    try:
        return float(metric)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise ConfigurationError(f"metric {name!a} is no number: {error}") from error


class Computation:
    """Runs the forward and backward passes of a step, and accumulates gradients. Hooks watch the last backward pass.

    `torch_lock` is held while torch computes, since workers that are threads of one process share torch's generator. Forward
    passes compute in `precision`, fp32 or bf16. If `weight_unit` is given, a batch's loss is multiplied by the batch's size and
    divided by this unit; otherwise all batches of a step have equal weights.
    """

    def __init__(
        self,
        task: Task,
        model: nn.Module,
        device: torch.device,
        *,
        rank: int,
        seed: int,
        torch_lock: AbstractContextManager[Any],
        precision: str = "fp32",
        weight_unit: int | None = None,
    ) -> None:
        self._task = task
        self._model = model
        self._device = device
        self._rank = rank
        self._seed = seed
        self._torch_lock = torch_lock
        self._autocast = autocast(precision, device)
        self._unit = weight_unit
        self._reach = Reach(model.parameters(), _UNTRAINED)
        self._trained = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
        self._trains = [(name, parameter, parameter.requires_grad) for name, parameter in tensor_names.parameters(model)]

    def loss(self, batch: Batch, watch: AbstractContextManager[Any] | None) -> float:
        """Return the loss of `batch` from a forward pass inside `watch`, seeded as in step 0 of `run`."""
        with self._torch_lock:
            seed_torch(self._seed, self._rank, 0, self._device)
            self._model.train()
            batch = to_device(batch, self._device)
            with self._autocast, watch or nullcontext():
                loss, _ = self._task.loss(self._model, batch)
            return float(loss.detach())

    def run(
        self,
        step: int,
        batches: Sequence[Batch],
        hooks: BackwardWatch | None,
        *,
        first_forward: AbstractContextManager[Any] | None = None,
        settled: Callable[[], bool] | None = None,
    ) -> Outcome | None:
        """Run the passes over all `batches` and return their outcome; None if `settled` returns False.

        The accumulated gradient is the gradient of the mean of the batches' losses. With a `weight_unit`, it is the gradient of
        the sum of losses over all examples, divided by the unit. The first forward pass runs inside `first_forward`. After this
        pass `settled` is called, which returns True if the step shall be taken. Raises NonFiniteLossError before the backward
        pass of a loss that is not finite, and ConfigurationError for a size or metrics that cannot be reported.
        """
        with self._torch_lock:
            start = time.perf_counter()
            seed_torch(self._seed, self._rank, step, self._device)
            self._model.train()
            found, sums = list[Outcome](), dict[str, float]()
            for index, batch in enumerate(batches):
                batch = to_device(batch, self._device)
                with self._autocast, first_forward if first_forward is not None and index == 0 else nullcontext():
                    loss, outputs = self._task.loss(self._model, batch)
                if settled is not None and index == 0 and not settled():
                    return None
                value = float(loss.detach())
                if not math.isfinite(value):
                    raise NonFiniteLossError(value, self._rank, step)
                self.check_trained(step)
                self._reach.look([loss], self._trained, self._names())
                if hooks is not None and index == len(batches) - 1:
                    hooks.arm()
                size = self.size(batch)
                self.share_of(loss, size, len(batches)).backward()  # type: ignore[no-untyped-call]
                if hooks is not None:
                    hooks.flush()
                found.append(Outcome(value, size, {}, 0.0))
                with torch.no_grad():
                    for name, metric in self._task.metrics(outputs, batch).items():
                        key = str(name) if isinstance(name, int) else name  # JSON keys are strings
                        sums[key] = sums.get(key, 0.0) + number(key, metric)
            outcome = self.together(found)
            if problem := unreportable(outcome.samples, sums):
                raise ConfigurationError(problem)
            return replace(outcome, metrics=sums, seconds=time.perf_counter() - start)

    def weight(self, batches: Sequence[Batch]) -> int | None:
        """Return the weight of this worker's gradient over `batches` in the mean gradient; None if all weights are equal."""
        return None if self._unit is None else sum(map(self.size, batches))

    def share_of(self, loss: torch.Tensor, size: int, batches: int) -> torch.Tensor:
        """Return the term that a batch contributes to the loss of a step of `batches` batches.

        `loss`: the batch's mean loss over its `size` examples.
        """
        if self._unit is not None:
            return loss * (size / self._unit)
        return loss / batches if batches > 1 else loss

    def together(self, outcomes: Sequence[Outcome]) -> Outcome:
        """Combine outcomes: the mean of the reported losses, weighted like the batches, and the sums of all other fields."""
        told = [(found.loss, found.samples if self._unit is not None else 1) for found in outcomes if found.loss is not None]
        sums: dict[str, float] = {}
        for found in outcomes:
            for name, metric in found.metrics.items():
                sums[name] = sums.get(name, 0.0) + metric
        weight = sum(weight for _, weight in told)
        return Outcome(
            sum(loss * weight for loss, weight in told) / max(weight, 1) if told else None,
            sum(found.samples for found in outcomes),
            sums,
            sum(found.seconds for found in outcomes),
        )

    def size(self, batch: Batch) -> int:
        """Return the number of examples in `batch` according to the task."""
        return whole(self._task.size(batch))

    def _names(self) -> Iterator[Mapping[str, Any]]:
        """Yield the attributes of the task, and the variables of the module that defines the task."""
        yield vars(self._task)
        yield vars(sys.modules[type(self._task).__module__])

    def check_trained(self, step: int) -> None:
        """Raise ConfigurationError if a parameter was frozen or unfrozen since the start, since the plan cannot change."""
        for name, parameter, trained in self._trains:
            if parameter.requires_grad is not trained:
                raise ConfigurationError(
                    f"parameter {name} was {'frozen' if trained else 'unfrozen'} before the backward pass of step {step}: what "
                    "is trained is fixed for a run; set requires_grad in Task.model() or before the session, and begin "
                    "another run for another choice"
                )
