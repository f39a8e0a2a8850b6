"""The master: close rounds, publish versions, keep the books and the checkpoints."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import xxhash

from psnode.clock import Clock
from psnode.config import Config
from psnode.errors import DeadlineExceededError, DivergedError, PeerLostError, TransportError, WireError
from psnode.history import Added, History
from psnode.link import Link, StopRequest
from psnode.master.accounts import Accounts, Stopwatch
from psnode.master.consistency import rule_of
from psnode.master.dealing import Dealing
from psnode.master.downlink import Downlink
from psnode.master.drafts import Drafts
from psnode.master.events import Events
from psnode.master.members import STRIKES, Members
from psnode.master.parameters import Parameters
from psnode.master.patience import Patience, RoundClock
from psnode.master.reduction import GroupClosed, Reduction, Refused
from psnode.master.rounds import Rounds
from psnode.messages import Report
from psnode.metrics import StepRecord
from psnode.plan import Plan
from psnode.run_directory import RunDirectory
from psnode.schedules import Schedule, learning_rate
from psnode.timeline import Tracer, parse_events
from psnode.wire import HEADER_BYTES, Flag, Frame, Kind, pack_groups

_HASHES = 16  # of versions, for reports that come late
_QUORUM = "quorum"
_STOP_AGAIN = 0.1  # of the stop deadline, for each thing that is left to do behind it
_FIRST_ROUNDS = 3  # declared pauses: kernels compile, caches fill
_SILENCES = 4  # deadlines that a worker may keep silent where no round waits for it


class _Overdue(NamedTuple):
    """An event: the deadline is over."""


class Observer(Protocol):
    """Whoever wants to see each record: the log, the progress line."""

    def write(self, record: StepRecord) -> None:
        """Called once a step, in order."""

    def extend(self, last: int) -> None:
        """The run will be complete after step `last`."""


@dataclass
class Master:
    """The server loop after the start-up. One thread runs it; arithmetic happens in the reduction's lanes."""

    link: Link
    config: Config
    plan: Plan
    run: RunDirectory
    workers: range
    spares: range
    parameters: Parameters
    downlink: Downlink
    drafts: Drafts
    reduction: Reduction
    watch: Stopwatch
    accounts: Accounts
    schedule: Schedule
    dealing: Dealing
    observer: Observer
    tracer: Tracer
    events: Events
    history: History | None = None
    version: int = 0  # finished updates
    stop_reason: str | None = None
    final_loss: float | None = None
    traces: dict[int, list[dict[str, object]]] = field(default_factory=dict)

    def serve(self) -> None:
        """Run rounds until the last step or a request to stop; returns when the last checkpoint is published.

        CheckpointError if the disk does not take that one.
        """
        self._hashes: dict[int, int] = {}
        self._clock = Clock()
        self._members = Members(self.workers, self._clock, self.spares)
        self._round = RoundClock(Patience(self.config.deadline, self.config.pause_deadline), self._clock)
        self._not_used: dict[int, tuple[int, list[int]]] = {}  # of those who are let in: a step, and groups
        self._stopping = self._dealt = False
        self._stop_by = math.inf
        self._added: list[tuple[Added, ...]] = [()] * len(self.plan.groups)
        self._rounds = Rounds(
            len(self.plan.groups),
            rule_of(self.config, len(self.workers)),
            by_rank=self.config.aggregate_order == "rank",
            add=self.reduction.add,
            close=self._close,
        )
        self.version = self.run.before.step
        self._rounds.admit(self._members.live, self.version)
        if self.history is not None:
            names = [name for name, _ in self.parameters.model.named_parameters()]
            self.history.start(self.version, self.parameters.digest(), names)
        for group in self.plan.groups:
            self.accounts.down(self.downlink.send_dense(group, self.version))
        self._finish_round(first=True)
        while not (self._stopping and not self.drafts and not self._missing_traces()):
            event = self._next_event()
            if isinstance(event, Frame):
                self._hear(event)
            try:
                self._handle(event)
            except WireError as error:
                if error.source is None:
                    raise
                self._reject(error.source, error)
        self.drafts.require(self.version)

    def _next_event(self) -> object:
        while True:
            try:
                with self._clock.listening(min(self._round.deadline, self._stop_by)) as seconds:
                    return self.link.next(seconds)
            except (PeerLostError, WireError) as error:
                return error
            except DeadlineExceededError:
                if self._clock.now() >= min(self._round.deadline, self._stop_by):
                    return _Overdue()

    def _handle(self, event: object) -> None:
        match event:
            case PeerLostError():
                self._lose(event.rank, str(event))
            case WireError(source=int(rank)) | Refused(sender=rank):
                self._reject(rank, event)
            case WireError():
                raise event
            case _Overdue():
                self._on_overdue()
            case Frame(kind=Kind.REQUEST):
                self._count_up(event)
                self._request_stop(bytes(event.body).decode("ascii", "replace"))
            case Frame(sender=rank) if rank not in self._members.live:
                if event.kind is Kind.REPORT and self._members.is_aside(rank):  # records may wait for it
                    self._on_report(event)
                event.release()
            case Frame(kind=Kind.GRADIENT):
                self._on_gradient(event)
            case Frame(kind=Kind.REPORT):
                self._on_report(event)
            case Frame(kind=Kind.STATE):
                self._count_up(event)
                self.drafts.take(event)
            case Frame(kind=Kind.TRACE):
                self.traces[event.sender] = parse_events(bytes(event.body), event.sender)
            case Frame(kind=Kind.SKIP):
                self._on_skip(event)
            case GroupClosed():
                self._on_group_closed(event)
            case StopRequest():
                self._request_stop(event.reason)
            case Frame():
                raise WireError(f"the master does not expect {event.kind.name} frames", event.sender)

    def _hear(self, frame: Frame) -> None:
        computed = frame.kind in (Kind.GRADIENT, Kind.REPORT, Kind.SKIP)
        self._members.hear(frame.sender, frame.step if computed else 0)

    def _request_stop(self, reason: str) -> None:
        if reason != _QUORUM and self._stop_by == math.inf:
            self._stop_by = self._clock.now() + self.config.stop_deadline
        self.stop_reason = self.stop_reason or reason

    def _on_gradient(self, frame: Frame) -> None:
        self._count_up(frame, self.version + 1)
        if self._stopping or not self._rounds.offer(frame):
            self.accounts.dropped(self.version + 1)
            frame.release()

    def _close(self, group: int) -> None:
        self.reduction.close(group, self.version + 1, self.schedule(self.version))

    def _missing_traces(self) -> frozenset[int]:
        return self._members.live - self.traces.keys() if self.config.timeline else frozenset()

    def _on_overdue(self) -> None:
        """Put aside who holds up the round or a checkpoint: if too few would be left, not before the longest deadline.

        Whoever asked the job to stop will not wait: then at once.
        """
        live, late = self._members.live, self._round.taken
        hurried = self._clock.now() >= self._stop_by
        if hurried:
            self._stop_by += _STOP_AGAIN * self.config.stop_deadline
        waiting = live & self.drafts.missing
        if not self._stopping:
            waiting |= live & self._rounds.missing
        elif not self.drafts:
            waiting |= self._missing_traces()
        if not waiting and not hurried and late > 2 * self._round.patience.utmost:
            raise TransportError(f"no round was finished within {late:.0f} s and no worker is to blame; go on with --resume")
        enough = len(live - waiting) + len(self._members.spares) >= max(1, self.config.min_workers)
        if waiting and (hurried or enough or late >= self._round.patience.utmost):
            for rank in sorted(waiting):
                self._put_aside(rank)
        if not hurried:
            self._round.extend()

    def _put_aside(self, rank: int) -> None:
        """Go on without `rank` until it is heard again."""
        reason = f"not heard of for {self._members.silent_for(rank):.1f} s"
        taken = self._do_without(rank, "put aside", reason)
        self._members.put_aside(rank, taken, 0 if self.config.consistency in ("ssp", "asp") else self.version + 1)

    def _lose(self, rank: int, reason: str) -> None:
        """Go on without `rank` for good."""
        if self._members.forget(rank):
            self.events.tell("lost", self.version, rank, reason)
        self._do_without(rank, "lost", reason)

    def _do_without(self, rank: int, event: str, reason: str) -> list[int]:
        """What `rank` sent to the open round counts. Below the quorum, stop with a checkpoint. What `Rounds.withdraw` says."""
        if not self._members.remove(rank):
            return []
        self.events.tell(event, self.version, rank, reason)
        self.accounts.lost(rank)
        self._write_records()
        left, least = len(self._members.live), self.config.min_workers
        if left + len(self._members.spares) < least and self.stop_reason is None:
            self.events.tell("quorum", self.version, None, f"{left} of --min-workers {least} are left")
            self._request_stop(_QUORUM)
        self.drafts.give_up(rank)
        if self._stopping:
            return []
        taken = self._rounds.withdraw(rank)
        if not left:  # nobody will close what is open: the version is complete as it is
            self._rounds.force()
        return taken

    def _let_in(self) -> None:
        """Who was put aside and heard again gets the whole weights of the version that is complete, and takes part or waits.

        Empty places are taken by spares, which have followed all versions.
        """
        self._not_used = self._members.let_in()
        for rank in self._not_used:
            waits = rank in self._members.spares
            self.events.tell("returned", self.version, rank, "its place is taken: a spare from here on" if waits else "")
            for group in self.plan.groups:
                self.accounts.down(self.downlink.send_dense(group, self.version, [rank]), self.version)
        for rank in self._members.promote():
            former = self.dealing.hand_over(rank, self._members.live - {rank})
            self.events.tell("promoted", self.version, rank, f"in the place of rank {former}")
            self._dealt = True
            self._not_used[rank] = self.version, []
            if statistics := self.drafts.statistics:
                self.link.send(rank, Kind.STATE, statistics, step=self.version, version=self.version)
                self.accounts.down(HEADER_BYTES + len(statistics), self.version)
        for rank in self._not_used.keys() & self._members.live:
            self.accounts.found(rank)
            self._rounds.admit([rank], self.version)
        self.downlink.recipients = tuple(sorted([*self._members.live, *self._members.spares]))

    def _deal_anew(self) -> None:
        """Where an epoch ends that was dealt among others than take part now, the next is dealt among these.

        Who was let in has to know of an earlier deal.
        """
        informed = self._not_used.keys() & self._members.live if self._dealt else set()
        if self.dealing.renew(self.version, self._members.live):
            self._dealt, informed = True, set(self._members.live)
            names = ", ".join(map(str, self.dealing.ranks))
            self.events.tell("re-dealt", self.version, None, f"the examples of the epoch that begins are those of ranks {names}")
            self.run.record(self.dealing.parts)
            epochs = self.dealing.epochs
            self.accounts.count_epochs(epochs.steps, epochs.shift)
            self.schedule = learning_rate(self.config, epochs.steps, epochs.shift)
            self.observer.extend(self.dealing.last_step)
        if informed:
            body = self.dealing.deal.to_bytes()
            self.link.send(sorted(informed), Kind.DEAL, body, step=self.version, version=self.version)
            self.accounts.down((HEADER_BYTES + len(body)) * len(informed), self.version)

    def _put_aside_the_silent(self) -> None:
        """Where rounds close without the slowest, no deadline notices that one has stopped."""
        if self.config.consistency == "bsp" or self.config.local is not None:
            return
        limit = max(_SILENCES * self._round.patience.of_round(pause=False), self._round.patience.utmost)
        for rank in sorted(self._members.live & self._rounds.missing):
            enough = len(self._members.live) > max(1, self.config.min_workers)
            if self._members.silent_for(rank) > (limit if enough else _SILENCES * limit):
                self._put_aside(rank)

    def _on_skip(self, frame: Frame) -> None:
        """A worker's gradient of this step is not finite."""
        self._count_up(frame, frame.step)
        self.accounts.dropped(self.version + 1)
        reason = bytes(frame.body).decode("utf-8", "replace")
        self.events.tell("skipped", self.version, frame.sender, f"its gradient of step {frame.step} is left out: {reason}")
        if not self._stopping:
            self._rounds.excuse(frame.sender, frame.step)

    def _reject(self, rank: int, what: WireError | Refused) -> None:
        """Count what `rank` sent and cannot be used; after three in a row go on without it.

        Nobody knows what an unreadable frame was: this round expects nothing more of its sender, and a checkpoint that
        waits for it is made without.
        """
        if rank not in self._members.live:
            return
        error = what.error if isinstance(what, Refused) else what
        self.accounts.dropped(self.version + 1)
        struck_out = self._members.strike(rank)
        self.events.tell("rejected", self.version, rank, f"{type(error).__name__}: {error}")
        self.accounts.excuse(rank, self.version + 1)
        if isinstance(what, WireError) and rank in self.drafts.missing:
            self.link.fail(rank, error)
            self._lose(rank, "sent a frame that is none in the place of its part of a checkpoint")
        elif struck_out:
            self.link.fail(rank, WireError(f"rank {rank} sent {STRIKES} frames in a row that are none", 0))
            self._lose(rank, f"sent {STRIKES} frames in a row that are none: not listened to any more")
        elif isinstance(what, WireError) and not self._stopping:
            self._rounds.excuse(rank, self.version + 1)

    def _on_group_closed(self, event: GroupClosed) -> None:
        self.accounts.down(event.nbytes, event.version)
        self._added[event.group] = event.added
        for added in event.added:
            self._members.forgive(added.rank)
        self._unfinished.discard(event.group)
        if not self._unfinished:
            self.version += 1
            self._finish_round()

    def _finish_round(self, *, first: bool = False) -> None:
        """Publish the version that is complete now, with word of what follows, and open the next round."""
        version = self.version
        self._stopping = version >= self.dealing.last_step or (self.stop_reason is not None and not first)
        every = self.config.eval_freq
        flags = Flag.STOP if self._stopping else Flag.NONE
        if not first and (self._stopping or (every and version % every == 0)):
            until = self._clock.now() + self._round.patience.utmost
            flags |= Flag.CHECKPOINT if self.drafts.begin(version, self._members.live, until) else Flag.NONE
        if not first:
            contributors = {(added.rank, added.step) for group in self._added for added in group}
            self.accounts.close(version, self.schedule(version - 1), contributors, self.watch.take())
            self._write_records()
            if self.history is not None:
                self.history.version(version, self.parameters.digest(), self._added)
        if self.config.hash_every and version and version % self.config.hash_every == 0:
            self._hashes[version] = xxhash.xxh3_64_intdigest(self.downlink.replica.data)
            self._hashes.pop(version - _HASHES * self.config.hash_every, None)
        self._unfinished = {group.index for group in self.plan.groups}
        self._members.ask(self._rounds.idle)
        if not self._stopping:
            self._let_in()
            if not first:
                self._deal_anew()
        self._round.begin(pause=self._is_pause(flags))
        self._send_round(flags, first=first)
        self._added = [()] * len(self.plan.groups)
        self.drafts.publish()
        self.drafts.hurry(self._clock.now())
        if not self._stopping:
            self._rounds.open(version)
            self._put_aside_the_silent()

    def _on_report(self, frame: Frame) -> None:
        self._count_up(frame, frame.step)
        report = Report.from_bytes(frame.body, frame.sender)
        expected = self._hashes.get(frame.version)
        if report.replica_hash is not None and expected is not None and report.replica_hash != expected:
            raise DivergedError(
                f"rank {frame.sender} computed step {frame.step} on weights that differ from the published version "
                f"{frame.version}: its memory or a message was corrupted; go on with --resume"
            )
        self.accounts.report(frame.step, frame.sender, report)
        self._write_records()

    def _write_records(self) -> None:
        for record in self.accounts.due():
            self.final_loss = record.loss
            self.observer.write(record)

    def _count_up(self, frame: Frame, step: int | None = None) -> None:
        self.accounts.up(HEADER_BYTES + frame.body.size, step)

    def _send_round(self, flags: Flag, *, first: bool) -> None:
        """Declare the version complete, to each worker with the groups of its gradient that were not used and never will be."""
        frames: dict[tuple[int, bytes, Flag], list[int]] = {}
        for rank in sorted([*self._members.live, *self._members.spares]):
            spare = rank in self._members.spares
            now = self.version, [] if first or spare else self._left_out(rank)
            step, left_out = self._not_used.get(rank, now)
            told = flags & ~Flag.CHECKPOINT if spare or rank in self._not_used else flags  # it was not there when that began
            told |= Flag.SPARE if spare else Flag.NONE
            frames.setdefault((step, pack_groups(left_out, len(self.plan.groups)), told), []).append(rank)
        self._not_used.clear()
        for (step, body, told), ranks in frames.items():
            self.link.send(ranks, Kind.ROUND, body, step=step, version=self.version, flags=told)
            self.accounts.down((HEADER_BYTES + len(body)) * len(ranks), self.version)

    def _left_out(self, rank: int) -> list[int]:
        """The groups of the version's gradient of `rank` that were not used; none where they may be used later."""
        if self.config.consistency in ("ssp", "asp"):
            return []
        return [group for group, added in enumerate(self._added) if all(rank != found.rank for found in added)]

    def _is_pause(self, flags: Flag) -> bool:
        """Whether the round that follows is known to take longer."""
        version, every = self.version, self.config.hash_every
        first = version < self.run.before.step + _FIRST_ROUNDS
        epoch_ends = self.accounts.epoch(version).is_integer()
        compares = bool(every) and version % every == 0
        lets_in = bool(self._not_used)
        alone = self.config.local is not None  # its workers take turns, and none can be cut off
        return first or epoch_ends or compares or lets_in or alone or Flag.CHECKPOINT in flags or bool(self.drafts)
