"""A worker whose passes are run by the program's own loop (psnode.session)."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from psnode.errors import ConfigurationError, NonFiniteLossError, in_one_line
from psnode.plans.roles import MASTER
from psnode.protocol.channel import ENOUGH
from psnode.protocol.messages import Evaluated, unreportable
from psnode.protocol.wire import Kind
from psnode.task import Batch
from psnode.tasks.device import to_device
from psnode.worker.computation import Outcome, number, seed_torch, whole
from psnode.worker.departed import DepartedGradients, another_gradient
from psnode.worker.idle_optimizers import IdleOptimizers
from psnode.worker.reached import Reach
from psnode.worker.roots import Roots
from psnode.worker.training_loop import Passes, Worker

_UNKNOWN = 1 << 52  # an upper bound on the last step, which only the master knows
_LIBRARIES = (str(Path(__file__).parents[1]), str(Path(torch.__file__).parent))
_UNTRAINED = (
    "give the session both, psnode.session(nn.ModuleList([net, criterion]), ...); or freeze it, requires_grad_(False); or, where "
    "each worker is to train its own by an optimizer of the program, say beside=[criterion] to the session"
)


class StepwiseWorker:
    """Hands out batches, and takes a step when the loop has run the passes over its batches. Only one thread may use it.

    All weights of the previous step have arrived when a batch is handed out. Groups of gradients are sent during the last
    backward pass of a step or, if `holds` is True, when the step is taken. `beside`: parameters outside the model that the
    loop trains itself.
    """

    def __init__(self, worker: Worker, *, holds: bool = False, beside: Iterable[nn.Parameter] = ()) -> None:
        self._worker, self._device = worker, worker.model.device
        worker.by_program = True
        self._steps = worker.run(leaves=False)
        self._left = False
        self._pending = False  # True if a batch was handed out and `step` has not been called since
        self._outcomes: list[Outcome] = []  # outcomes of this step's batches so far
        self._passes: Passes | None = None
        self._go_on(next(self._steps, None))
        self._holds = holds
        self._trained = {id(parameter) for parameter in worker.model.parameters.values()}
        self._optimizers = IdleOptimizers(self._trained)
        self._departed = DepartedGradients(worker.model.parameters)
        worker.hooks.stand_ins = self._departed.stand_ins
        self._reach = Reach((*worker.model.model.parameters(), *beside), _UNTRAINED)
        self._roots = Roots(self._look)

    @property
    def version(self) -> int:
        """The number of updates in the present weights."""
        return self._worker.receiver.version

    @property
    def steps_per_epoch(self) -> int:
        """The number of steps in an epoch."""
        return self._worker.steps_per_epoch

    @property
    def total_steps(self) -> int:
        """The last step of the run."""
        return self._worker.total_steps

    @property
    def epoch(self) -> int:
        """The number of finished epochs."""
        return (self.version + self._worker.sender.epoch_offset) // self.steps_per_epoch

    @property
    def lr(self) -> float:
        """The learning rate of the last finished step; before the first step, the rate of the first step."""
        return self._worker.sender.rate(max(self.version - 1, 0))

    @property
    def gradient_norm(self) -> float | None:
        """The norm of the last step's mean gradient before clipping; None without clip_grad_norm, or before the first step."""
        return self._worker.receiver.gradient_norm

    @property
    def batches_left(self) -> int | None:
        """The number of batches until this start of the run ends; None if only the master knows the last step."""
        left = max(0, self._worker.last_step - self.version)  # a resumed run may be beyond its last step
        return left * self._worker.config.batches_per_step if left < _UNKNOWN else None

    @property
    def over(self) -> bool:
        """True if no more batches come. The master still waits until this worker calls `leave`."""
        return self._passes is None

    def draw(self) -> Batch | None:
        """Return the next batch, on the device, or None if the run is over.

        Raises ConfigurationError if `step` was not called for the previous batch.
        """
        if self._pending:
            raise ConfigurationError(
                "a batch was passed over: each one of s.batches needs its loss.backward() and s.step(); "
                "batches_per_step=K sums several"
            )
        if self._passes is None:
            return None
        step, batches, _, _ = self._passes
        self._pending, self._weighed, self._begun = True, False, time.perf_counter()
        if not self._outcomes:
            self._optimizers.check()
            self._departed.remove()
            self._refuse_early_gradients()
            seed_torch(self._worker.config.seed, self._worker.link.rank, step, self._device)
        if len(self._outcomes) == len(batches) - 1 and not self._holds:
            self._worker.hooks.arm()
        self._size = self._worker.computation.size(batches[len(self._outcomes)])
        return to_device(batches[len(self._outcomes)], self._device)

    def backward(self, loss: torch.Tensor, weight: int | None) -> None:
        """Run the backward pass of a batch's mean `loss`, scaled to the batch's part in the loss of the step.

        `weight`: the number of items over which the loss is a mean; None means the number of examples in the batch.
        """
        if not self._pending or self._passes is None:
            raise ConfigurationError("s.backward() without a batch: call it once for each batch of s.batches")
        weighed = self._worker.config.weighted_mean
        if weight is not None and not weighed:
            raise ConfigurationError(
                "a weight has no meaning in this session, whose gradients count alike: say weighted_mean=True"
            )
        if weighed:
            self._size = self._size if weight is None else whole(weight)
            if problem := unreportable(self._size, {}):
                raise ConfigurationError(problem)
            self._worker.sender.weight = self._size + sum(found.samples for found in self._outcomes)
        self._weighed = self._roots.forgiven = True
        try:
            self._worker.computation.share_of(loss, self._size, len(self._passes.batches)).backward()  # type: ignore[no-untyped-call]
        finally:
            self._roots.forgiven = False

    def step(self, loss: torch.Tensor | float | None, metrics: Mapping[str, Any]) -> bool:
        """Finish a batch. After the last batch of a step, send the remaining gradients and wait for the next weights.

        Returns True after the last batch of a step. Raises NonFiniteLossError for a loss that is not finite, and
        ConfigurationError if the loss, the metrics or the gradients are invalid for this step.
        """
        if not self._pending or self._passes is None:
            raise ConfigurationError("s.step() without a batch: call it once for each batch of s.batches, after loss.backward()")
        if self._worker.config.weighted_mean and not self._weighed:
            raise ConfigurationError(
                "with weighted_mean=True a loss is to be weighed before its gradients leave: s.backward(loss, weight=n) in the "
                "place of loss.backward()"
            )
        value = None if loss is None else _scalar(loss)
        if value is not None and not math.isfinite(value):
            raise NonFiniteLossError(value, self._worker.link.rank, self._passes.step)
        sums = {name: number(name, metric) for name, metric in metrics.items()}
        if problem := unreportable(self._size, sums):
            raise ConfigurationError(problem)
        self._roots.compare(loss, value, len(self._passes.batches))
        self._roots.clear()
        self._outcomes.append(Outcome(value, self._size, sums, time.perf_counter() - self._begun))
        self._pending = False
        if len(self._outcomes) < len(self._passes.batches):
            return False
        self._finish_backward()
        outcome, self._outcomes = self._worker.computation.together(self._outcomes), []
        self._go_on(self._sent(outcome))
        return True

    def stop(self) -> None:
        """Ask the master to end the run after the open round."""
        self._worker.link.send(MASTER, Kind.STOP_REQUEST, ENOUGH.encode())

    def evaluated(self, loss: Any, metrics: Mapping[str, Any], examples: int, seconds: float) -> bool:
        """Report an evaluation of the present weights. Returns True if no earlier evaluation of the run is better.

        Raises ConfigurationError within a step, after the end of the run, and for invalid figures.
        """
        if self._left:
            raise ConfigurationError("s.evaluated() after the end of the run: call it inside the loop, after s.step()")
        if self._pending or self._outcomes:
            raise ConfigurationError("s.evaluated() within a step: call it after s.step() has returned True")
        means = {name: number(name, metric) for name, metric in metrics.items()}
        for name in ("top1", "top5"):
            if name in means and not 0 <= means[name] <= 1:
                raise ConfigurationError(f"{name} of s.evaluated is a fraction from 0 to 1, not {means[name]:g}")
        if problem := unreportable(examples, means):
            raise ConfigurationError(problem)
        return self._worker.report_evaluation(Evaluated(number("loss", loss), means, whole(examples), float(seconds)))

    def leave(self) -> None:
        """Tell the master that the program no longer uses the last weights, and wait until the job has ended.

        Further calls have no effect.
        """
        if not self._left:
            self._left = True
            self._worker.leave()

    def close(self) -> None:
        """End the threads, remove hooks and stand-ins, and give each parameter of the model its own memory again."""
        self._roots.remove()
        self._optimizers.remove()
        self._steps.close()
        self._worker.close()
        self._departed.remove()
        self._worker.model.release()
        self._worker.replica.release()

    def _go_on(self, passes: Passes | None) -> None:
        """Set the passes that the loop runs next. Passes whose step is not taken are skipped.

        This is decided after all weights have arrived, so no pass of the loop is wasted.
        """
        while passes is not None and not passes.settled():
            passes = self._sent(None)
        self._passes = passes

    def _sent(self, outcome: Outcome | None) -> Passes | None:
        try:
            return self._steps.send(outcome)
        except StopIteration:
            return None

    def _refuse_early_gradients(self) -> None:
        for name, parameter in self._worker.model.parameters.items():
            if parameter.grad is not None:
                raise ConfigurationError(
                    f"parameter {name} has a gradient before the step's own: a backward pass that is to count belongs "
                    "between a batch of s.batches and its s.step(), and no other"
                )

    def _look(self, losses: Sequence[torch.Tensor]) -> None:
        """Raise ConfigurationError if the backward pass that the loop begins on `losses` reaches a parameter outside the model.

        If the previous step has been taken, first remove the stand-ins for its gradients, as zero_grad() would do.
        """
        if self._departed.over:
            self._departed.remove()
        self._reach.look(losses, self._trained, _variables())

    def _finish_backward(self) -> None:
        assert self._passes is not None
        hooks = self._worker.hooks
        self._worker.computation.check_trained(self._passes.step)
        if self._holds:
            begun = any(parameter.grad is not None for parameter in self._worker.model.parameters.values())
            hooks.arm()
        else:
            begun = hooks.begun
        if not begun:
            raise ConfigurationError("s.step() without loss.backward(): no parameter got a gradient since the batch was drawn")
        self._departed.check(hooks.replaced)
        if (name := hooks.added_late) is not None:
            raise another_gradient(name)
        hooks.flush()
        self._departed.over = True


def _variables() -> Iterator[Mapping[str, Any]]:
    """Yield the local and module variables of all active functions outside psnode and torch."""
    frame = sys._getframe()
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_LIBRARIES):
            yield frame.f_locals
            yield frame.f_globals
        frame = frame.f_back  # type: ignore[assignment]


def _scalar(loss: torch.Tensor | float) -> float:
    try:
        return float(loss.detach() if isinstance(loss, torch.Tensor) else loss)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigurationError(
            f"the loss of s.step must be one number, the mean over the batch: {in_one_line(error)}"
        ) from error
