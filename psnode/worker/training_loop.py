"""The worker: compute a gradient, have it sent, and begin the next forward pass while the weights come that it helped to make."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from psnode.config import Config
from psnode.config.schedules import OwnRate, learning_rate
from psnode.exchange.gradients import Gradients
from psnode.exchange.receiver import Receiver
from psnode.exchange.replica import Replica
from psnode.exchange.routes import MASTER
from psnode.exchange.sender import GradientSender
from psnode.exchange.shard.consistency import Rule
from psnode.exchange.trained_model import TrainedModel
from psnode.plan.groups import Plan
from psnode.protocol.channel import FrameChannel
from psnode.protocol.messages import Report, Reshard, Start
from psnode.protocol.wire import Flag, Frame, Kind
from psnode.records.metrics import peak_memory
from psnode.records.timeline import Tracer
from psnode.task import Batch
from psnode.worker.backward_hooks import GroupHooks
from psnode.worker.checkpoint_part import CheckpointParts
from psnode.worker.computation import Computation, Outcome
from psnode.worker.data_share import DataShare
from psnode.worker.first_use import FirstUse


class Passes(NamedTuple):
    """Passes that `step` needs over `batches`. Before the first backward pass `settled` says whether the step is to be taken."""

    step: int
    batches: list[Batch]
    settled: Callable[[], bool]


Steps = Generator[Passes, Outcome | None, None]


@dataclass
class Worker:
    """One worker after the start-up, ready to take steps."""

    link: FrameChannel
    config: Config
    rule: Rule
    plan: Plan
    start: Start
    model: TrainedModel
    replica: Replica
    gradients: Gradients
    receiver: Receiver
    first_use: FirstUse | None  # None: a forward pass waits for all weights
    sender: GradientSender
    checkpoint_parts: CheckpointParts
    hooks: GroupHooks
    computation: Computation
    share: DataShare
    deal: Callable[[Reshard, int, DataShare | None], DataShare]  # this rank's part of a deal, after a version and another share
    tracer: Tracer
    own_rate: OwnRate | None = None  # Task.learning_rate
    on_host: Sequence[str] = ()  # with a device: lines that tell which parts are still coded on the host, and why
    _void: list[Batch] | None = None  # of a step that was begun and not taken

    def train(self) -> None:
        """Take part in the run from its first step to its last."""
        self._compute(self.run())

    def take_steps(self) -> None:
        """Take steps from the present weights, up to the round that the master declares the last."""
        self._compute(self.steps())

    def _compute(self, steps: Steps) -> None:
        """Run the passes that `steps` asks for."""
        passes = next(steps, None)
        while passes is not None:
            outcome = self.computation.run(
                passes.step, passes.batches, self.hooks, first_forward=self.first_use, settled=passes.settled
            )
            try:
                passes = steps.send(outcome)
            except StopIteration:
                return

    def run(self) -> Steps:
        """Take the weights that the master begins with, and all steps; then wait to be told to leave.

        Yields the passes of one step after another, and is sent their outcome; None if `settled` has said no.
        """
        if self.config.saves_amid:
            self.checkpoint_parts.prepare()
        if self.start.weights_follow:
            self.receiver.expect(self.start.step)
        else:
            self.receiver.hold(self.start.step)
        self._stand_by(self.receiver.complete())
        yield from self.steps()
        self._leave()

    def steps(self) -> Steps:
        """Yield the passes of each step from the present weights, up to the round that the master declares the last."""
        version, going, self._last_step = self.receiver.version, True, self.start.last_step
        self._steps_per_epoch, self._workers = self.start.steps_per_epoch, self.share.sampler.workers
        while going and version < self._end:
            going = yield from self._step(version + 1)
            # weights of a later version or another share of the data came: work begun with the others is void
            if self.receiver.version != version or self.receiver.deal is not None:
                version, going = self.receiver.version, True
                continue
            if going:
                version += 1
                self.receiver.expect(version)
            while going and self.rule.rounds_go_on and self.receiver.behind():
                going = self._settle(version, self.model.buffers())
                if self.receiver.version != version:
                    version, going = self.receiver.version, True
                elif going:
                    version += 1
                    self.receiver.expect(version)
        if going:
            self._settle(version, self.model.buffers())

    def _step(self, step: int) -> Generator[Passes, Outcome | None, bool]:
        """Have the gradient of `step` computed, and send it; False if the version before was the last, or a later one has come.

        The forward pass begins while that version is still coming. It may be in vain, and moves the running statistics:
        those that a checkpoint of that version needs are copied before.
        """
        version = step - 1
        buffers = self.model.buffers()
        every = self.config.hash_every
        compared = bool(every) and version > 0 and version % every == 0
        digest = None
        if self.first_use is None or compared:
            self.receiver.complete()
            digest = self.replica.digest() if compared else None
            if self.receiver.version != version:
                return False
        self._take_deal(version)
        with self.tracer.span("load", step=step):
            batches = self._void or next(self.share.batches)
            self._void = None

        def settled() -> bool:
            self.receiver.complete()
            if self._is_dealt() or not self._settle(version, buffers) or self._is_dealt():
                return False
            if self.receiver.applied is not None:
                self._count_epochs(self.receiver.applied - version)
            # not before: until then unused groups of the last gradient can return to the residuals
            self.sender.begin(step, version, measure=step % self.config.log_interval == 0)
            self.sender.weight = self.computation.weight(batches)
            return True

        marks = self.model.marks() if compared else {}
        before = self.receiver.waited
        with self.tracer.span("forward_backward", step=step):
            outcome = yield Passes(step, batches, settled)
        self.model.check(settled=outcome is not None)
        if outcome is not None and compared:
            self.model.compare(marks)
        if outcome is None:
            self._void = batches
            self.model.load_buffers(buffers)
            return False
        self.share.place += 1
        seconds = outcome.seconds - (self.receiver.waited - before)
        with self.tracer.span("drain", step=step):
            encode = self.sender.drain()
        self.gradients.clear()
        self._report(step, outcome, seconds, encode, digest)
        return True

    def _is_dealt(self) -> bool:
        """True if the examples were resharded, and no batch was drawn from that deal yet."""
        return self.receiver.deal is not None

    @property
    def _end(self) -> int:
        """The last step, also by a deal that no batch was drawn from yet."""
        return self._last_step if self.receiver.deal is None else self.receiver.deal.last_step

    def _take_deal(self, version: int) -> None:
        """Continue after `version` with the share that the master has dealt since, if any."""
        if (deal := self.receiver.deal) is None:
            return
        self.receiver.deal, self._void = None, None
        statistics, self.receiver.statistics = self.receiver.statistics, {}
        self.model.load_buffers({name.removeprefix("buffer/"): value for name, value in statistics.items()})
        self.share.batches.close()
        self.share = self.deal(deal, version, self.share if self.rule.rounds_go_on else None)
        self._steps_per_epoch, self._workers = deal.steps_per_epoch, len(deal.ranks)
        self._count_epochs(deal.shift)
        self._last_step = deal.last_step

    def _count_epochs(self, epoch_offset: int) -> None:
        """Count epochs of the coming steps from `epoch_offset`."""
        lr = learning_rate(self.config, self._steps_per_epoch, epoch_offset, self.own_rate)
        self.sender.reschedule(lr, self._steps_per_epoch, epoch_offset, self._workers)

    def _stand_by(self, flags: Flag) -> Flag:
        """While this rank is a spare: take one version after the other."""
        while Flag.SPARE in flags and Flag.STOP not in flags:
            self.receiver.expect(self.receiver.version + 1)
            flags = self.receiver.complete()
        return flags

    def _settle(self, version: int, buffers: dict[str, torch.Tensor]) -> bool:
        """Wait until `version` is complete and contribute to its checkpoint if there is to be one.

        False if it is the last, or if a later one has come in its place.
        """
        flags = self._stand_by(self.receiver.complete())
        if self.receiver.version != version:
            return False
        passed_over, self.receiver.checkpoints = self.receiver.checkpoints, []
        for earlier in passed_over:
            self._contribute(earlier, buffers)
        if Flag.CHECKPOINT in flags:
            self._contribute(version, buffers)
        return Flag.STOP not in flags

    def _report(self, step: int, outcome: Outcome, seconds: float, encode: float, digest: int | None) -> None:
        report = Report(
            loss=outcome.loss,
            samples=outcome.samples,
            metrics=outcome.metrics,
            forward_backward=seconds,
            encode=encode,
            wait=self.receiver.waited,
            relative_error=self.sender.relative_error,
            replica_hash=digest,
            up=self.sender.nbytes,
            memory=(peak_memory() or 0) if step >= self._end else 0,
        )
        self.link.send(MASTER, Kind.REPORT, report.to_bytes(), step=step, version=step - 1)

    def _contribute(self, step: int, buffers: dict[str, torch.Tensor]) -> None:
        """Begin this worker's part of the checkpoint."""
        own = {f"buffer/{name}": value.cpu() for name, value in buffers.items()}
        self.checkpoint_parts.begin(step, {**self.share.state(), **own})

    def _leave(self) -> None:
        """Hand over the trace and wait for the master's word that everything is written."""
        if self.tracer.enabled:
            self.link.send(MASTER, Kind.TRACE, self.tracer.to_bytes())
        while True:
            event = self.receiver.listen()
            if isinstance(event, Frame) and event.kind is Kind.END:
                return

    def close(self) -> None:
        """End the threads."""
        self.share.batches.close()
        self.checkpoint_parts.close()
        self.sender.close()
        self.hooks.remove()
        if self.first_use is not None:
            self.first_use.remove()
