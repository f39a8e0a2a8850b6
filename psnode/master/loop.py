"""The master's loop, which closes rounds, publishes versions, and writes records and checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from torch import nn

from psnode.config import Config
from psnode.errors import ConfigurationError, DeadlineExceededError, NormError, PeerLostError, PsnodeError, WireError
from psnode.exchange.flow_control import FlowControl
from psnode.exchange.shard.consistency import Rule
from psnode.exchange.shard.handle import ShardHandle
from psnode.exchange.shard.shard_events import GroupClosed, NotApplied, Refused, Scaled, Squares, StatePart, Took
from psnode.master.books import Books
from psnode.master.checkpoints.checkpoint_thread import CheckpointNews
from psnode.master.checkpoints.dues import CheckpointDues
from psnode.master.checkpoints.pending import PendingCheckpoints
from psnode.master.checkpoints.soundness import Soundness
from psnode.master.deadlines import RoundTimer, patience_of
from psnode.master.divergence import ReplicaHashes, diverged
from psnode.master.evaluated import SessionEvaluations
from psnode.master.events import Events
from psnode.master.example_dealing import ExampleDealing
from psnode.master.job_state import JobState, stop_reason_of
from psnode.master.lines.closing import tell_of_the_stop
from psnode.master.lines.progress import Fanout
from psnode.master.member_list import Members
from psnode.master.membership import Membership
from psnode.master.readmission import Readmission
from psnode.master.recorder import StepRecorder
from psnode.master.round_boundary import RoundBoundary
from psnode.plans.groups import Plan
from psnode.plans.roles import MASTER
from psnode.protocol.channel import ENOUGH, FrameChannel, RemoteFailureError, StopRequest
from psnode.protocol.messages import Report, plain
from psnode.protocol.round import Round
from psnode.protocol.wire import HEADER_BYTES, Flag, Frame, Kind
from psnode.records.checkpoint import SOUND
from psnode.records.directory import RunDirectory
from psnode.records.history import AddedGradient, History
from psnode.records.timeline import parse_events
from psnode.tasks import tensor_names
from psnode.transport.clock import Clock

_FIRST_ROUNDS = 3  # first rounds that are declared pauses, since kernels compile and caches fill


class _Overdue(NamedTuple):
    """The event that a deadline has passed."""


@dataclass
class Master:
    """The server loop after the start-up. One thread runs it; the arithmetic runs in the lanes (threads) of the shard."""

    link: FrameChannel
    config: Config
    run: RunDirectory
    workers: range
    spares: range
    servers: range
    model: nn.Module
    plan: Plan
    rule: Rule
    shard: ShardHandle
    flow_control: FlowControl
    pending: PendingCheckpoints
    recorder: StepRecorder
    dealing: ExampleDealing
    observer: Fanout
    events: Events
    clock: Clock
    job_state: JobState
    soundness: Soundness = field(default_factory=Soundness)
    history: History | None = None
    evaluations: SessionEvaluations | None = None  # only in a session, whose program may evaluate on a worker
    behind: tuple[int, ...] = ()  # ranks that do not have the weights yet
    partial: int = 0  # number of rounds in which some group lacked a worker's gradient
    traces: dict[int, list[dict[str, object]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.books = Books(self.recorder, self.observer, self.soundness, self.pending)

    @property
    def version(self) -> int:
        """Number of finished updates."""
        return self.job_state.version

    def serve(self) -> None:
        """Run rounds until the last step or a request to stop, and return when the last checkpoint is published.

        Raises CheckpointError if the last checkpoint cannot be written.
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
            except RemoteFailureError as error:  # it came while the shards were asked
                if error is event or error.failure.loss is None:
                    raise
                self._on_failure(error)
            if self._held and not self.pending.in_flight:
                self._publish()
            if not self._membership.live and self.shard.untouched and not self.job_state.stopping:
                self._desert()
            if self.evaluations is not None:
                self.evaluations.settle(self.clock.now() + self._membership.timer.patience.hard_limit)
            self.books.write()
        self.pending.finish()
        self.pending.require(self.version)

    def _prepare(self) -> None:
        """Create the membership, the round boundary and the first round, and send the weights to the ranks that lack them."""
        self._hashes = ReplicaHashes(self.config.hash_every)
        self._reported: dict[int, int] = {}  # by rank, its last step with a report; the loss of such a step is finite
        # held: the complete version is published once an earlier checkpoint is written; due: it gets a checkpoint
        self._held = self._due = False
        self._added: list[tuple[AddedGradient, ...]] = [()] * len(self.plan.groups)
        self._membership = Membership(
            Members(self.workers, self.clock, self.spares), self.flow_control,
            RoundTimer(patience_of(self.config, self.rule), self.clock),
            self.link, self.config, self.job_state, self.rule, self.shard, self.pending, self.recorder, self.events,
        )  # fmt: skip
        self._readmission = Readmission(
            self.link, self.job_state, self._membership, self.shard, self.pending, self.recorder, self.dealing, self.events
        )
        self._boundary = RoundBoundary(
            self.link, self.run, self.job_state, self._membership, self.plan, self.rule, self.shard, self.pending,
            self.recorder, self.dealing, self.events, self._readmission,
        )  # fmt: skip
        self.job_state.round = Round.after(self.run.resume_point.step)
        self._dues = CheckpointDues(self.config, self.clock)
        self.shard.admit(self._membership.live, self.version)
        self.pending.is_last = lambda version: self.job_state.stopping and version == self.version
        self.pending.doubt = lambda: self.soundness.doubt
        if (found := self.run.resume_point.checkpoint) is not None and found.facts.get(SOUND, True) is None:
            self.soundness.await_(found.step)
        if self.history is not None:
            parameters = [name for name, _ in tensor_names.parameters(self.model)]
            self.history.start(self.version, self.shard.digest(), parameters)
        if self.behind:
            self.recorder.down(self.shard.send_whole(self.behind, self.version))
            self.recorder.links.send_whole(self.behind)
            self.flow_control.settle(self.behind)

    def _next_event(self) -> object:
        while True:
            try:
                with self.clock.listening(self._membership.wait_until) as seconds:
                    return self.link.next(seconds)
            except (PeerLostError, WireError, RemoteFailureError) as error:
                return error
            except DeadlineExceededError:
                if self.clock.now() >= self._membership.wait_until:
                    return _Overdue()

    def _handle(self, event: object) -> None:
        match event:
            case Frame(kind=Kind.GRADIENT, sender=rank) if rank in self._membership.live:  # by far the most frequent event
                self._on_gradient(event)
            case GroupClosed():
                self._on_group_closed(event)
            case PeerLostError():
                self._membership.lose(event.rank, event.reason)
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
            case Frame(kind=Kind.EVENT | Kind.ANSWER):
                self._handle(self.shard.take(event))
            case Squares():
                self.shard.note_squares(event)
            case Frame(kind=Kind.STOP_REQUEST):
                self._stop(stop_reason_of(event))
            case Frame(kind=Kind.ASK):
                self._membership.hear_answer(event.sender, event.version)
            case Frame(kind=Kind.EVALUATED) if self.evaluations is not None:
                self.evaluations.hear(event)
            case Frame(sender=rank) if rank not in self._membership.live:
                if event.kind is Kind.REPORT and self._membership.members.is_suspended(rank):  # records may wait for this report
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
            case StatePart():
                self.pending.join(event)
            case CheckpointNews():
                self.pending.settle()
            case Took():
                self.recorder.links.receive_gradients(event.rank, event.received)
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
        self._membership.members.hear(frame.sender, frame.step if computed else 0)
        if frame.kind is Kind.GRADIENT:
            self.recorder.links.receive_gradients(MASTER, HEADER_BYTES + frame.body.size)

    def _on_gradient(self, frame: Frame) -> None:
        if not (self.shard.keep(frame) if self.job_state.stopping else self.shard.offer(frame)):
            self.recorder.dropped(self.job_state.round.last_step)
            frame.release()

    def _missing_traces(self) -> frozenset[int]:
        """Return the workers that have not sent their trace, which a worker sends when it leaves.

        The master waits for traces if it records a timeline, and in a session, whose workers may evaluate before they leave.
        """
        waits = self.config.timeline or self.evaluations is not None
        return self._membership.live - self.traces.keys() if waits else frozenset()

    def _on_skip(self, frame: Frame) -> None:
        """Handle a worker's notice that it leaves out its gradient of a step because the gradient is not finite."""
        self.recorder.dropped(self.job_state.round.last_step)
        self.recorder.skipped(frame.step, frame.sender)
        reason = plain(bytes(frame.body).decode("utf-8", "replace"))
        self.events.tell("skipped", self.version, frame.sender, f"its gradient of step {frame.step} is left out: {reason}")
        if not self.job_state.stopping:
            self.shard.leave_out(frame.sender, frame.version)

    def _on_failure(self, event: RemoteFailureError) -> None:
        """Handle the failure of a worker.

        The job continues without a worker that failed because of a bug or an exception of the task. A fault of settings, weights
        or checkpoints ends the job. A ConfigurationError after the first step of this job is a fault of the loop or the task,
        since the settings have worked before. It ends the job after a checkpoint.
        """
        if event.failure.loss is not None:
            newest = not self.rule.rounds_go_on and event.step in self.job_state.round.numbers
            live = self._membership.live if newest else frozenset[int]()
            weights, missing = (None, live) if self.shard.is_remote else (self.shard.replica, self.shard.missing)
            self.books.judge(self.soundness.give_up(f"the loss on it is {event.failure.loss} on rank {event.rank}"))
            finite = (live - missing) | {rank for rank, step in self._reported.items() if step >= event.step}
            raise diverged(self.link, event, finite, live, weights if newest else None, self.shard.outlier())
        late = event.exit_code == ConfigurationError.exit_code and self.version > self.run.resume_point.step
        if event.exit_code != PsnodeError.exit_code and not late:
            raise event
        self._membership.fail(event, ends=late)

    def _on_group_closed(self, event: GroupClosed) -> None:
        self.recorder.down(event.nbytes, self.job_state.round.last_step)
        self.recorder.links.send_weights(event.group, event.nbytes)
        self._boundary.clip(event.group, event.clipped)
        self._added[event.group] = event.added
        for added in event.added:
            self._membership.members.forgive(added.rank)
        self._unfinished.discard(event.group)
        if not self._unfinished:
            self.job_state.round = self.job_state.round.following
            self._complete()

    def _complete(self) -> None:
        """Count the complete version and publish it.

        If the version gets a checkpoint while an earlier checkpoint is in flight, publication waits for the earlier checkpoint.
        """
        if self._boundary.count(self._contributors):
            self.observer.extend(max(self.job_state.round.finished, self.dealing.last_step))
        complete = self.job_state.round.at(self.version - 1)
        self._due = self._dues.is_due(complete, last=self.job_state.is_over(self.dealing.last_step))
        self._held = True
        if not (self._due and self.pending.in_flight):
            self._publish()

    @property
    def _contributors(self) -> set[tuple[int, int]]:
        return {(added.rank, added.step) for group in self._added for added in group}

    def _publish(self, *, first: bool = False) -> None:
        """Publish the complete version, begin its checkpoint if one is due, and open the next round unless the job stops."""
        version, self._held = self.version, False
        finished, last_step = self.job_state.round.finished, self.dealing.last_step
        self.job_state.stopping = finished >= last_step if first else self.job_state.is_over(last_step)
        flags = Flag.STOP if self.job_state.stopping else Flag.NONE
        due = not first and (self._due or self.job_state.stopping)
        if due and self._boundary.begin_checkpoint(self.clock.now() + self._membership.timer.patience.hard_limit):
            self.soundness.await_(version)
            flags |= Flag.CHECKPOINT
        if not first:
            self.partial += any(len({added.rank for added in group}) < len(self.workers) for group in self._added)
            rate, norm = self.dealing.rate(self.job_state.round.at(version - 1)), self.shard.gradient_norm
            self.recorder.close(finished, rate, self._contributors, self.shard.seconds(), norm)
            self.books.write()
            if norm is not None and self.evaluations is not None:
                self._boundary.tell_norm(norm)
            if self.history is not None:
                self.history.version(version, self.shard.digest(), self._added)
        if self._hashes.due(version):
            self._hashes.note(version, None if self.shard.is_remote else self.shard.replica)
        self._unfinished = {group.index for group in self.plan.groups}
        self._membership.members.restart_silence(self.shard.idle)
        self._readmission.catch_up()
        self._readmission.send_past()
        if not self.job_state.stopping:
            self._readmission.readmit()
            if not first and self._boundary.deal():
                self.observer.extend(self.dealing.last_step)
        self._membership.timer.begin(pause=self._is_pause(flags))
        self._boundary.close(flags, {} if first else self._boundary.left_out(self._added, self._membership.forfeited))
        self._membership.settle(self._contributors)
        self._added = [()] * len(self.plan.groups)
        self.pending.publish()
        self.pending.hurry(self.clock.now())
        if not self.job_state.stopping:
            if not first:
                self._boundary.keep()
            self.shard.open(self.job_state.round)
            self._membership.suspend_silent()

    def _desert(self) -> None:
        """Handle an open round that has neither workers nor gradients.

        If a stop was requested, end the job. Otherwise pass the round to spares, if there are any. The round makes no
        version, since a version without gradients would skip a batch of the data.
        """
        if self.job_state.stop_reason is not None:
            self._boundary.break_off(self.clock.now())
        elif self._membership.members.spares:
            if self._boundary.pass_on():
                self.observer.extend(self.dealing.last_step)
            self._membership.timer.begin(pause=True)
            self.shard.open(self.job_state.round)

    def _on_report(self, frame: Frame) -> None:
        report = Report.from_bytes(frame.body, frame.sender)
        self._reported[frame.sender] = frame.step
        self.recorder.up(report.up, frame.step)
        self.recorder.down(report.down, frame.step)
        self.recorder.links.send_gradients(frame.sender, report.up)
        self._hashes.compare(frame.sender, frame.step, frame.version, report.replica_hash)
        self.recorder.report(frame.step, frame.sender, report)
        self.soundness.hear(frame.sender, frame.version, report.loss)
        self.books.judge(self.soundness.verdicts(self._membership.live))
        self.books.write()

    def _is_pause(self, flags: Flag) -> bool:
        """Return True if the next round is known to take longer."""
        first = self.version < self.run.resume_point.step + _FIRST_ROUNDS
        alone = self.config.local is not None  # workers in one process take turns, and none can lose its connection
        checkpoint = Flag.CHECKPOINT in flags or bool(self.pending)
        compared_or_over = self._hashes.due(self.version) or self.dealing.ends(self.job_state.round.finished)
        return first or alone or checkpoint or compared_or_over or bool(self._readmission.entering)
