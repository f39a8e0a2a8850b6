"""The worker's training loop.

The worker computes a gradient, hands it to the sender, and begins the next forward pass while the updated weights arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from psnode.config import Config
from psnode.config.schedules import OwnRate, learning_rate
from psnode.exchange.gradients import GradientSource
from psnode.exchange.replica import Replica
from psnode.exchange.sender import GradientSender
from psnode.exchange.shard.consistency import Rule
from psnode.exchange.shard.remote.shard_server import ShardServer
from psnode.exchange.trained_model import TrainedModel
from psnode.exchange.weights_receiver import Receiver
from psnode.plans.groups import Plan
from psnode.plans.roles import MASTER
from psnode.protocol.channel import FrameChannel
from psnode.protocol.messages import Evaluated, Report, Reshard, Start
from psnode.protocol.round import Round
from psnode.protocol.wire import Flag, Frame, Kind
from psnode.records.metrics import peak_memory
from psnode.records.timeline import Tracer
from psnode.task import Batch
from psnode.worker.backward_hooks import GroupHooks
from psnode.worker.checkpoint_part import CheckpointParts
from psnode.worker.computation import Computation, Outcome
from psnode.worker.data_share import DataShare
from psnode.worker.first_use import FirstUse
from psnode.worker.weights_relay import WeightsRelay


class Passes(NamedTuple):
    """The passes over `batches` that `step` needs.

    `settled` is called before the first backward pass and returns True if the step should be taken. `sends`: True if this is
    the last step of its round, so that the gradient leaves during the last backward pass.
    """

    step: int
    batches: list[Batch]
    settled: Callable[[], bool]
    sends: bool = True


Steps = Generator[Passes, Outcome | None, None]


def _at_once() -> bool:
    """Return True: a later step of a round is always taken, since the round's first step has waited for the weights.

    This function is `Passes.settled` for these steps.
    """
    return True


@dataclass
class Worker:
    """A worker after the start-up, ready to take steps."""

    link: FrameChannel
    config: Config
    rule: Rule
    plan: Plan
    start: Start
    model: TrainedModel
    replica: Replica
    gradients: GradientSource
    receiver: Receiver
    first_use: FirstUse | None  # None if forward passes wait for all weights
    sender: GradientSender
    checkpoint_parts: CheckpointParts
    hooks: GroupHooks
    computation: Computation
    share: DataShare
    deal: Callable[[Reshard, int, DataShare | None], DataShare]  # (new division, finished steps, earlier share)
    tracer: Tracer
    own_rate: OwnRate | None = None  # Task.learning_rate
    steps_per_round: int = 1  # 1 in every job: the master and StepwiseWorker know no other rounds yet
    server: ShardServer | None = None  # server of the groups of which this rank is the root
    relay: WeightsRelay | None = None  # None if no worker passes weights on
    on_host: Sequence[str] = ()  # on a rank with a device: for each codec that runs on the host, a line with the reason
    by_program: bool = False  # True in a session: the program runs the passes, and the master waits until this worker leaves
    _saved: int = -1  # the newest version with a checkpoint to which this worker has contributed
    _void: list[Batch] | None = None  # batches of a step that was begun but not taken; the next attempt uses them again

    def train(self) -> None:
        """Take all steps of the run, and wait until the master dismisses this worker."""
        self._compute(self.run())

    def take_steps(self) -> None:
        """Take steps from the present weights until the master declares a version to be the last."""
        self._compute(self.steps())

    def _compute(self, steps: Steps) -> None:
        """Run the passes that `steps` yields, and send their outcomes to `steps`."""
        passes = next(steps, None)
        while passes is not None:
            hooks = self.hooks if passes.sends else None
            outcome = self.computation.run(
                passes.step, passes.batches, hooks, first_forward=self.first_use, settled=passes.settled
            )
            try:
                passes = steps.send(outcome)
            except StopIteration:
                return

    def run(self, *, leaves: bool = True) -> Steps:
        """Receive the first weights, take all steps, and then call `leave`. If `leaves` is False, the caller has to call `leave`.

        Yields the passes of each step. The caller runs them and sends their outcome, or None if `settled` has returned
        False.
        """
        if self.config.saves_amid:
            self.checkpoint_parts.prepare()
        if self.start.weights_follow:
            self.receiver.expect(self.start.step)
        else:
            self.receiver.hold(self.start.step)
        self._stand_by(self.receiver.complete())
        yield from self.steps()
        if leaves:
            self.leave()

    def steps(self) -> Steps:
        """Yield the passes of each step from the present weights, until the master declares a version to be the last."""
        now, going, self._last_step = self._round_of(self.receiver.version), True, self.start.last_step
        self._steps_per_epoch, self._workers = self.start.steps_per_epoch, self.share.sampler.workers
        while going and now.finished < self._end:
            going = yield from self._take(now)
            # if a later version of the weights or a new share of the data has come, the round begins again with it
            if self.receiver.version != now.version or self.receiver.deal is not None:
                now, going = self._round_of(self.receiver.version), True
                continue
            if going:
                now = now.following
                self.receiver.expect(now.version)
            while going and self.rule.rounds_go_on and self.receiver.behind():
                going = self._settle(now.version, self.model.buffers())
                if self.receiver.version != now.version:
                    now, going = self._round_of(self.receiver.version), True
                elif going:
                    now = now.following
                    self.receiver.expect(now.version)
        if going:
            self._settle(now.version, self.model.buffers())

    def _round_of(self, version: int) -> Round:
        return Round.after(version, self.steps_per_round)

    def _take(self, now: Round) -> Generator[Passes, Outcome | None, bool]:
        """Yield the passes of round `now`, and send its gradient. Return False if the round is not taken.

        A round is not taken if its version is the last, or if a later version or a new share of the data has come. The first
        forward pass begins while the version is still arriving, and changes the running statistics. Therefore the buffers,
        which hold these statistics, are copied first. A checkpoint of the version needs the copies. If the round is not
        taken, the copies are put back.
        """
        version = now.version
        buffers = self.model.buffers()
        every = self.config.hash_every
        compared = bool(every) and version > 0 and version % every == 0
        digest = None
        if self.first_use is None or compared:
            self.receiver.complete()
            digest = self.replica.digest() if compared else None
            if self.receiver.version != version:
                return False
        self._take_deal(now)
        before = self.receiver.waited
        drawn, outcomes = list[Batch](), list[Outcome]()

        def settled() -> bool:
            self.receiver.complete()
            if self._is_dealt() or not self._settle(version, buffers) or self._is_dealt():
                return False
            if self.receiver.applied is not None:
                self._count_epochs(self.receiver.applied - now.finished)
            # not earlier, since up to this point unused groups of the last gradient could return to the residuals
            self.sender.begin(now, measure=now.reaches(self.config.log_interval))
            self.sender.weight = self.computation.weight(drawn)
            return True

        for step in now.numbers:
            with self.tracer.span("load", step=step):
                batches = self._void or next(self.share.batches)
                self._void = None
            drawn += batches
            first = step == now.first_step
            if first:
                marks = self.model.marks() if compared else {}
            else:
                self.sender.weight = self.computation.weight(drawn)
            with self.tracer.span("forward_backward", step=step):
                outcome = yield Passes(step, batches, settled if first else _at_once, sends=step == now.last_step)
            self.model.check(settled=outcome is not None)
            if outcome is not None and compared and first:
                self.model.compare(marks)
            if outcome is None:
                self._void = batches
                self.model.load_buffers(buffers)
                return False
            self.share.place += 1
            outcomes.append(outcome)
        outcome = outcomes[0] if now.steps == 1 else self.computation.together(outcomes)
        seconds = outcome.seconds - (self.receiver.waited - before)
        with self.tracer.span("drain", step=now.last_step):
            encode = self.sender.drain()
        self.gradients.clear()
        self._report(now, outcome, seconds, encode, digest)
        return True

    def _is_dealt(self) -> bool:
        """Return True if a new share of the examples has come but is not yet in use."""
        return self.receiver.deal is not None

    @property
    def steps_per_epoch(self) -> int:
        """The number of steps in an epoch, for the present number of workers among which the examples are shared."""
        return self._steps_per_epoch

    @property
    def total_steps(self) -> int:
        """The last step of the run. This start of the run may end earlier; see `last_step`."""
        return self.config.total_steps(self._steps_per_epoch, self.sender.epoch_offset)

    @property
    def last_step(self) -> int:
        """The step after which this start of the run ends, or an upper bound if only the master knows that step."""
        return self._end

    @property
    def _end(self) -> int:
        """The last step according to the newest share of the examples, even if this share is not yet in use."""
        return self._last_step if self.receiver.deal is None else self.receiver.deal.last_step

    def _take_deal(self, now: Round) -> None:
        """Change to the new share of the examples for round `now`, if one has come."""
        if (deal := self.receiver.deal) is None:
            return
        self.receiver.deal, self._void = None, None
        statistics, self.receiver.statistics = self.receiver.statistics, {}
        self.model.load_buffers({name.removeprefix("buffer/"): value for name, value in statistics.items()})
        self.share.batches.close()
        self.share = self.deal(deal, now.finished, self.share if self.rule.rounds_go_on else None)
        self._steps_per_epoch, self._workers = deal.steps_per_epoch, len(deal.ranks)
        self._count_epochs(deal.shift)
        self._last_step = deal.last_step

    def _count_epochs(self, epoch_offset: int) -> None:
        """Use `epoch_offset` for the learning rate and the epochs of the coming steps."""
        lr = learning_rate(self.config, self._steps_per_epoch, epoch_offset, self.own_rate)
        self.sender.reschedule(lr, self._steps_per_epoch, epoch_offset, self._workers)

    def _stand_by(self, flags: Flag) -> Flag:
        """Receive one version after another while this rank is a spare. Return the flags of the last version received."""
        while Flag.SPARE in flags and Flag.STOP not in flags:
            self.receiver.expect(self.receiver.version + 1)
            flags = self.receiver.complete()
        return flags

    def _settle(self, version: int, buffers: dict[str, torch.Tensor]) -> bool:
        """Wait until `version` is complete, and begin this worker's part of its checkpoint if it gets one.

        Returns False if `version` is the last, or if a later version has come in its place.
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

    def _report(self, now: Round, outcome: Outcome, seconds: float, encode: float, digest: int | None) -> None:
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
            memory=(peak_memory() or 0) if now.last_step >= self._end else 0,
        )
        self.link.send(MASTER, Kind.REPORT, report.to_bytes(), step=now.last_step, version=now.version)

    def _contribute(self, version: int, buffers: dict[str, torch.Tensor]) -> None:
        """Begin this worker's part of the checkpoint of `version`, with the model's `buffers`."""
        self._saved = version
        own = {f"buffer/{name}": value.cpu() for name, value in buffers.items()}
        self.checkpoint_parts.begin(version, {**self.share.state(), **own})

    def report_evaluation(self, told: Evaluated) -> bool:
        """Report an evaluation of the present weights, and return True if the master knows no better evaluation.

        Call this between two steps. The best weights get a checkpoint. If no checkpoint was due for them, it contains only
        the part of this worker.
        """
        version = self.receiver.version
        told = replace(told, saves=self._saved != version)
        self.link.send(MASTER, Kind.EVALUATED, told.to_bytes(), step=version, version=version)
        answer = self.receiver.await_answer()
        if Flag.CHECKPOINT in answer.flags:
            self._contribute(version, self.model.buffers())
        return bytes(answer.body) == b"\x01"

    def leave(self) -> None:
        """Send the trace to the master if the master waits for it, and wait for the END message."""
        if self.tracer.enabled or self.by_program:
            self.link.send(MASTER, Kind.TRACE, self.tracer.to_bytes())
        while True:
            event = self.receiver.listen()
            if isinstance(event, Frame) and event.kind is Kind.END:
                return

    def close(self) -> None:
        """End the threads and remove the hooks."""
        self.share.batches.close()
        if self.server is not None:
            self.server.close()
        if self.relay is not None:
            self.relay.close()
        self.checkpoint_parts.close()
        self.sender.close()
        self.hooks.remove()
        if self.first_use is not None:
            self.first_use.remove()
