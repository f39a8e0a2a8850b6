"""The master: close rounds, publish versions, keep the books and the checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from torch import nn

from psnode.config import Config
from psnode.errors import ConfigurationError, DeadlineExceededError, NormError, PeerLostError, PsnodeError, WireError
from psnode.exchange.flow_control import FlowControl
from psnode.exchange.shard.consistency import Rule
from psnode.exchange.shard.handle import ShardHandle
from psnode.exchange.shard.shard_events import GroupClosed, NotApplied, Refused, Scaled
from psnode.master.books import Books
from psnode.master.checkpoints.checkpoint_thread import CheckpointNews
from psnode.master.checkpoints.pending import CheckpointDues, PendingCheckpoints
from psnode.master.checkpoints.soundness import Soundness
from psnode.master.deadlines import RoundTimer, patience_of
from psnode.master.divergence import ReplicaHashes, diverged
from psnode.master.events import Events
from psnode.master.job_state import JobState
from psnode.master.lines.closing import tell_of_the_stop
from psnode.master.lines.progress import Fanout
from psnode.master.membership import Members, Membership
from psnode.master.recorder import StepRecorder
from psnode.master.round_boundary import RoundBoundary
from psnode.master.sharding import Sharding
from psnode.plan.groups import Plan
from psnode.protocol.channel import ENOUGH, FrameChannel, RemoteFailureError, StopRequest
from psnode.protocol.messages import Report, plain
from psnode.protocol.wire import Flag, Frame, Kind
from psnode.records.checkpoint import SOUND
from psnode.records.directory import RunDirectory
from psnode.records.history import AddedGradient, History
from psnode.records.timeline import parse_events
from psnode.tasks import tensor_names
from psnode.transport.clock import Clock

_FIRST_ROUNDS = 3  # declared pauses: kernels compile, caches fill


class _Overdue(NamedTuple):
    """An event: the deadline is over."""


@dataclass
class Master:
    """The server loop after the start-up. One thread runs it; arithmetic happens in the shard's lanes."""

    link: FrameChannel
    config: Config
    run: RunDirectory
    workers: range
    spares: range
    model: nn.Module
    plan: Plan
    rule: Rule
    shard: ShardHandle
    pending: PendingCheckpoints
    recorder: StepRecorder
    sharding: Sharding
    observer: Fanout
    events: Events
    clock: Clock
    job_state: JobState
    soundness: Soundness = field(default_factory=Soundness)
    history: History | None = None
    behind: tuple[int, ...] = ()  # ranks that do not have the weights yet
    partial: int = 0  # rounds that were not of all workers
    traces: dict[int, list[dict[str, object]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.books = Books(self.recorder, self.observer, self.soundness, self.pending)

    @property
    def version(self) -> int:
        """Number of finished updates."""
        return self.job_state.version

    def serve(self) -> None:
        """Run rounds until the last step or a request to stop; returns when the last checkpoint is published.

        CheckpointError if the disk does not take that one.
        """
        self._prepare()
        self.recorder.begin()
        self._publish(first=True)
        while not (self.job_state.stopping and not self.pending and not self._missing_traces()):
            event = self._next_event()
            if isinstance(event, Frame):
                self._hear(event)
            try:
                self._handle(event)
            except WireError as error:
                if error.source is None:
                    raise
                self._membership.reject(error.source, error)
            if self._held and not self.pending.in_flight:
                self._publish()
            if not self._members.live and self.shard.untouched and not self.job_state.stopping:
                self._desert()
            self.books.write()
        self.pending.finish()
        self.pending.require(self.version)

    def _prepare(self) -> None:
        """Put together members, timers and messages of the rounds to come, and send weights to those who lack them."""
        self._hashes = ReplicaHashes(self.config.hash_every)
        self._held = self._due = False  # a version waits to be published, until an earlier checkpoint is written; its own is due
        self._members = Members(self.workers, self.clock, self.spares)
        self._round = RoundTimer(patience_of(self.config, self.rule), self.clock)
        self._added: list[tuple[AddedGradient, ...]] = [()] * len(self.plan.groups)
        flow_control = FlowControl(4 * self.plan.size)
        self._membership = Membership(
            self.link, self.config, self.job_state, self._members, self._round, self.rule, self.shard, self.pending,
            self.recorder, self.events, flow_control,
        )  # fmt: skip
        self._boundary = RoundBoundary(
            self.link, self.run, self.job_state, self._members, self.plan, self.rule, self.shard, self.pending, self.recorder,
            self.sharding,
            self.events, flow_control,
        )  # fmt: skip
        self.job_state.version = self.run.resume_point.step
        self._dues = CheckpointDues(self.config, self.clock)
        self.shard.admit(self._members.live, self.version)
        self.pending.is_last = lambda version: self.job_state.stopping and version == self.version
        self.pending.doubt = lambda: self.soundness.doubt
        if (found := self.run.resume_point.checkpoint) is not None and found.facts.get(SOUND, True) is None:
            self.soundness.await_(found.step)
        if self.history is not None:
            parameters = [name for name, _ in tensor_names.parameters(self.model)]
            self.history.start(self.version, self.shard.digest(), parameters)
        if self.behind:
            self.recorder.down(self.shard.send_whole(self.behind, self.version))

    def _next_event(self) -> object:
        while True:
            try:
                with self.clock.listening(min(self._round.deadline, self.job_state.stop_by)) as seconds:
                    return self.link.next(seconds)
            except (PeerLostError, WireError, RemoteFailureError) as error:
                return error
            except DeadlineExceededError:
                if self.clock.now() >= min(self._round.deadline, self.job_state.stop_by):
                    return _Overdue()

    def _handle(self, event: object) -> None:
        match event:
            case Frame(kind=Kind.GRADIENT, sender=rank) if rank in self._members.live:  # most events by far
                self._on_gradient(event)
            case GroupClosed():
                self._on_group_closed(event)
            case PeerLostError():
                self._membership.lose(event.rank, str(event))
            case RemoteFailureError():
                self._on_failure(event)
            case Refused(error=NormError() as error) | Scaled(error=NormError() as error):
                self._membership.judge(event, error)
            case WireError(source=int(rank)) | Refused(sender=rank):
                self._membership.reject(rank, event)
            case WireError():
                raise event
            case _Overdue():
                self._membership.on_overdue(self._missing_traces(), held=self._held)
            case Frame(kind=Kind.STOP_REQUEST):
                self._stop(plain(bytes(event.body).decode("ascii", "replace")))
            case Frame(kind=Kind.ASK):
                self._boundary.hear_answer(event.sender, event.version)
            case Frame(sender=rank) if rank not in self._members.live:
                if event.kind is Kind.REPORT and self._members.is_suspended(rank):  # records may wait for it
                    self._on_report(event)
                event.release()
            case Frame(kind=Kind.REPORT):
                self._on_report(event)
            case Frame(kind=Kind.STATE):
                self.pending.take(event)
            case Frame(kind=Kind.TRACE):
                self.traces[event.sender] = parse_events(bytes(event.body), event.sender)
            case Frame(kind=Kind.SKIP_STEP):
                self._on_skip(event)
            case CheckpointNews():
                self.pending.settle()
            case NotApplied():
                self.events.tell("not applied", self.version, None, event.reason)
            case StopRequest():
                self._stop(event.reason)
            case Frame():
                raise WireError(f"the master does not expect {event.kind.name} frames", event.sender)

    def _stop(self, reason: str) -> None:
        if self.job_state.stop_reason is None and reason != ENOUGH:
            tell_of_the_stop(reason)
        self.job_state.request(reason)

    def _hear(self, frame: Frame) -> None:
        computed = frame.kind in (Kind.GRADIENT, Kind.REPORT, Kind.SKIP_STEP)
        self._members.hear(frame.sender, frame.step if computed else 0)

    def _on_gradient(self, frame: Frame) -> None:
        if not (self.shard.keep(frame) if self.job_state.stopping else self.shard.offer(frame)):
            self.recorder.dropped(self.version + 1)
            frame.release()

    def _missing_traces(self) -> frozenset[int]:
        return self._members.live - self.traces.keys() if self.config.timeline else frozenset()

    def _on_skip(self, frame: Frame) -> None:
        """A worker's gradient of this step is not finite."""
        self.recorder.dropped(self.version + 1)
        self.recorder.skipped(frame.step, frame.sender)
        reason = plain(bytes(frame.body).decode("utf-8", "replace"))
        self.events.tell("skipped", self.version, frame.sender, f"its gradient of step {frame.step} is left out: {reason}")
        if not self.job_state.stopping:
            self.shard.excuse(frame.sender, frame.step)

    def _on_failure(self, event: RemoteFailureError) -> None:
        """A worker cannot go on. An exception is its own; a fault of settings, weights or checkpoints ends the job.

        Settings that have taken a step are not at fault: a later fault of a loop or a task ends the job after a checkpoint.
        """
        if event.failure.loss is not None:
            newest = not self.rule.rounds_go_on and event.step == self.version + 1
            live, weights = (self._members.live, self.shard.replica) if newest else (frozenset[int](), None)
            self.books.judge(self.soundness.give_up(f"the loss on it is {event.failure.loss} on rank {event.rank}"))
            raise diverged(self.link, event, live - self.shard.missing, live, weights, self.shard.outlier())
        late = event.exit_code == ConfigurationError.exit_code and self.version > self.run.resume_point.step
        if event.exit_code != PsnodeError.exit_code and not late:
            raise event
        self._membership.fail(event, ends=late)

    def _on_group_closed(self, event: GroupClosed) -> None:
        self.recorder.down(event.nbytes, event.version)
        self._boundary.sent(event.recipients, event.nbytes)
        self._boundary.clip(event.group, event.clipped)
        self._added[event.group] = event.added
        for added in event.added:
            self._members.forgive(added.rank)
        self._unfinished.discard(event.group)
        if not self._unfinished:
            self.job_state.version += 1
            self._complete()

    def _complete(self) -> None:
        """The version is complete: publish it, if it is to have a checkpoint when the one before is on the disk."""
        if self._boundary.count(self._contributors):
            self.observer.extend(max(self.version, self.sharding.last_step))
        self._due = self._dues.is_due(self.version, last=self.job_state.is_over(self.sharding.last_step))
        self._held = True
        if not (self._due and self.pending.in_flight):
            self._publish()

    @property
    def _contributors(self) -> set[tuple[int, int]]:
        return {(added.rank, added.step) for group in self._added for added in group}

    def _publish(self, *, first: bool = False) -> None:
        """Publish the version that is complete, with word of the next one, and open its round."""
        version, self._held = self.version, False
        self.job_state.stopping = version >= self.sharding.last_step if first else self.job_state.is_over(self.sharding.last_step)
        flags = Flag.STOP if self.job_state.stopping else Flag.NONE
        due = not first and (self._due or self.job_state.stopping)
        if due and self._boundary.begin_checkpoint(self.clock.now() + self._round.patience.hard_limit):
            self.soundness.await_(version)
            flags |= Flag.CHECKPOINT
        if not first:
            self.partial += any(len({added.rank for added in group}) < len(self.workers) for group in self._added)
            rate, norm = self.sharding.rate(version - 1), self.shard.gradient_norm
            self.recorder.close(version, rate, self._contributors, self.shard.seconds(), norm)
            self.books.write()
            if self.history is not None:
                self.history.version(version, self.shard.digest(), self._added)
        if self._hashes.due(version):
            self._hashes.note(version, self.shard.replica)
        self._unfinished = {group.index for group in self.plan.groups}
        self._members.ask(self.shard.idle)
        self._boundary.catch_up()
        if not self.job_state.stopping:
            self._boundary.readmit()
            if not first and self._boundary.deal():
                self.observer.extend(self.sharding.last_step)
        self._round.begin(pause=self._is_pause(flags))
        self._boundary.close(flags, {} if first else self._boundary.left_out(self._added, self._membership.forfeited))
        self._membership.settle(self._contributors)
        self._added = [()] * len(self.plan.groups)
        self.pending.publish()
        self.pending.hurry(self.clock.now())
        if not self.job_state.stopping:
            if not first:
                self._boundary.keep()
            self.shard.open(version)
            self._membership.suspend_silent()

    def _desert(self) -> None:
        """No worker is left in the open round, and nothing was added to it: that makes no version, which would skip a batch."""
        if self.job_state.stop_reason is not None:
            self._boundary.break_off(self.clock.now())
        elif self._members.spares:
            if self._boundary.pass_on():
                self.observer.extend(self.sharding.last_step)
            self._round.begin(pause=True)
            self.shard.open(self.version)

    def _on_report(self, frame: Frame) -> None:
        report = Report.from_bytes(frame.body, frame.sender)
        self.recorder.up(report.up, frame.step)
        self.recorder.down(report.down, frame.step)
        self._hashes.compare(frame.sender, frame.step, frame.version, report.replica_hash)
        self.recorder.report(frame.step, frame.sender, report)
        self.soundness.hear(frame.sender, frame.version, report.loss)
        self.books.judge(self.soundness.verdicts(self._members.live))
        self.books.write()

    def _is_pause(self, flags: Flag) -> bool:
        """True if the round that follows is known to take longer."""
        first = self.version < self.run.resume_point.step + _FIRST_ROUNDS
        alone = self.config.local is not None  # its workers take turns, and none can be cut off
        checkpoint = Flag.CHECKPOINT in flags or bool(self.pending)
        compared_or_over = self._hashes.due(self.version) or self.sharding.ends(self.version)
        return first or alone or checkpoint or compared_or_over or bool(self._boundary.entering)
