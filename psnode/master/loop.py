"""The master: close rounds, publish versions, keep the books and the checkpoints."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
import xxhash

from psnode import checkpoint
from psnode.config import Config
from psnode.errors import CheckpointError, DeadlineExceededError, DivergedError, PeerLostError, TransportError, WireError
from psnode.history import Added, History
from psnode.link import Link, StopRequest
from psnode.master.accounts import Accounts, Stopwatch
from psnode.master.consistency import rule_of
from psnode.master.downlink import Downlink
from psnode.master.events import Events
from psnode.master.parameters import Parameters
from psnode.master.patience import Patience
from psnode.master.reduction import GroupClosed, Reduction, Refused
from psnode.master.rounds import Rounds
from psnode.messages import Report
from psnode.metrics import StepRecord
from psnode.plan import Plan
from psnode.run_directory import RunDirectory
from psnode.schedules import Schedule
from psnode.timeline import Tracer, parse_events
from psnode.wire import HEADER_BYTES, Flag, Frame, Kind, pack_groups

_STRIKES = 3
_HASHES = 16  # of versions, for reports that come late
_FIRST_ROUNDS = 3  # declared pauses: kernels compile, caches fill
_SILENT_ROUNDS = 4  # deadlines that a worker may keep silent where no round waits for it


class _Overdue(NamedTuple):
    """An event: the deadline is over."""


class Observer(Protocol):
    """Whoever wants to see each record: the log, the progress line."""

    def write(self, record: StepRecord) -> None:
        """Called once a step, in order."""


@dataclass
class _Pending:
    """A checkpoint that waits for the workers' parts. `weights`: x, the optimizer's memory and y; None: they stand still."""

    draft: checkpoint.Draft
    weights: tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], torch.Tensor] | None
    states: dict[int, dict[str, torch.Tensor]] = field(default_factory=dict)


@dataclass
class Master:
    """The server loop after the start-up. One thread runs it; arithmetic happens in the reduction's lanes."""

    link: Link
    config: Config
    plan: Plan
    run: RunDirectory
    workers: range
    parameters: Parameters
    downlink: Downlink
    reduction: Reduction
    watch: Stopwatch
    accounts: Accounts
    schedule: Schedule
    last_step: int
    observer: Observer
    tracer: Tracer
    events: Events
    history: History | None = None
    version: int = 0  # finished updates
    stop_reason: str | None = None
    final_loss: float | None = None
    traces: dict[int, list[dict[str, object]]] = field(default_factory=dict)

    def serve(self) -> None:
        """Run rounds until the last step or a request to stop; returns when the last checkpoint is published."""
        self._live = frozenset(self.workers)
        self._hashes: dict[int, int] = {}
        self._aside: dict[int, tuple[int, list[int]]] = {}  # the step each was put aside in, and what was not used of it
        self._back: set[int] = set()  # of those, who was heard again
        self._heard = dict.fromkeys(self.workers, time.monotonic())
        fixed = self.config.deadline if self.config.local is None else max(self.config.deadline, self.config.pause_deadline)
        self._patience = Patience(fixed, self.config.pause_deadline)
        self._pause, self._opened = True, time.monotonic()
        self._drafts: dict[int, _Pending] = {}
        self._stopping = False
        self._strikes: dict[int, int] = {}
        self._added: list[tuple[Added, ...]] = [()] * len(self.plan.groups)
        self._rounds = Rounds(
            len(self.plan.groups),
            rule_of(self.config, len(self.workers)),
            by_rank=self.config.aggregate_order == "rank",
            add=self.reduction.add,
            close=self._close,
        )
        self.version = self.run.before.step
        self._rounds.admit(self._live, self.version)
        if self.history is not None:
            names = [name for name, _ in self.parameters.model.named_parameters()]
            self.history.start(self.version, self.parameters.digest(), names)
        for group in self.plan.groups:
            self.accounts.down(self.downlink.send_dense(group, self.version))
        self._finish_round(first=True)
        while not (self._stopping and not self._drafts and (not self.config.timeline or self._live <= set(self.traces))):
            event = self._next_event()
            if isinstance(event, Frame):
                self._heard[event.sender] = time.monotonic()
            try:
                self._handle(event)
            except WireError as error:
                if error.source is None:
                    raise
                self._reject(error.source, error)

    def _next_event(self) -> object:
        try:
            return self.link.next(self._deadline - time.monotonic())
        except (PeerLostError, WireError) as error:
            return error
        except DeadlineExceededError:
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
            case Frame(sender=rank) if rank not in self._live:
                event.release()
                if rank in self._aside:
                    self._back.add(rank)
            case Frame(kind=Kind.GRADIENT):
                self._on_gradient(event)
            case Frame(kind=Kind.REPORT):
                self._on_report(event)
            case Frame(kind=Kind.STATE):
                self._on_state(event)
            case Frame(kind=Kind.TRACE):
                self.traces[event.sender] = parse_events(bytes(event.body), event.sender)
            case Frame(kind=Kind.SKIP):
                self._on_skip(event)
            case Frame(kind=Kind.REQUEST):
                self._count_up(event)
                self._request_stop(bytes(event.body).decode("ascii", "replace"))
            case GroupClosed():
                self._on_group_closed(event)
            case StopRequest():
                self._request_stop(event.reason)
            case Frame():
                raise WireError(f"the master does not expect {event.kind.name} frames", event.sender)

    def _request_stop(self, reason: str) -> None:
        self.stop_reason = self.stop_reason or reason

    def _on_gradient(self, frame: Frame) -> None:
        self._count_up(frame, self.version + 1)
        if self._stopping or not self._rounds.offer(frame):
            self.accounts.dropped(self.version + 1)
            frame.release()

    def _close(self, group: int) -> None:
        self.reduction.close(group, self.version + 1, self.schedule(self.version))

    def _on_overdue(self) -> None:
        """Put aside who holds up the round or a checkpoint: after the longer deadline of pauses if nobody would be left."""
        waiting = set() if self._stopping else set(self._rounds.missing)
        for pending in self._drafts.values():
            waiting |= self._live - set(pending.states)
        if self._stopping and self.config.timeline and not self._drafts:
            waiting |= self._live - set(self.traces)
        now = time.monotonic()
        late = now - self._opened
        if not waiting and late > 2 * self.config.pause_deadline:
            raise TransportError(f"no round was finished within {late:.0f} s and no worker is to blame; go on with --resume")
        if waiting and (len(self._live - waiting) >= max(1, self.config.min_workers) or late >= self.config.pause_deadline):
            for rank in sorted(waiting & self._live):
                self._put_aside(rank, f"not heard of for {now - self._heard[rank]:.1f} s")
        self._deadline = now + self._seconds

    def _put_aside(self, rank: int, reason: str) -> None:
        """Go on without `rank` until it is heard again."""
        self._aside[rank] = (self.version + 1, [])
        self._back.discard(rank)
        self._do_without(rank, "put aside", reason)

    def _lose(self, rank: int, reason: str) -> None:
        """Go on without `rank` for good."""
        if self._aside.pop(rank, None) is not None:
            self.events.tell("lost", self.version, rank, reason)
        self._do_without(rank, "lost", reason)

    def _do_without(self, rank: int, event: str, reason: str) -> None:
        """What `rank` sent to the open round counts. Below the quorum, stop with a checkpoint."""
        if rank not in self._live:
            return
        self._live -= {rank}
        self.events.tell(event, self.version, rank, reason)
        self.accounts.lost(rank)
        self._write_records()
        if len(self._live) < self.config.min_workers and self.stop_reason is None:
            self.events.tell(
                "quorum", self.version, None, f"{len(self._live)} of --min-workers {self.config.min_workers} are left"
            )
            self._request_stop("quorum")
        self._publish_if_complete()
        if not self._stopping:
            self._rounds.withdraw(rank)
            if not self._live:  # nobody will close what is open: the version is complete as it is
                self._rounds.force()

    def _let_in(self) -> None:
        """Those who were put aside and heard again get the whole weights of the version that is complete, and take part."""
        for rank in sorted(self._back & self._aside.keys()):
            self.events.tell("returned", self.version, rank)
            self._live |= {rank}
            self.accounts.found(rank)
            self._rounds.admit([rank], self.version)
            for group in self.plan.groups:
                self.accounts.down(self.downlink.send_dense(group, self.version, [rank]), self.version)
        self._back.clear()
        self.downlink.recipients = tuple(sorted(self._live))

    def _put_aside_the_silent(self) -> None:
        """Where rounds close without the slowest, no deadline notices that one has stopped."""
        if self.config.consistency != "bsp" and self.config.local is None:
            now, limit = time.monotonic(), _SILENT_ROUNDS * self._patience.of_round(pause=False)
            for rank in sorted(self._live):
                if now - self._heard[rank] > limit:
                    self._put_aside(rank, f"not heard of for {now - self._heard[rank]:.1f} s")

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
        if rank not in self._live:
            return
        error = what.error if isinstance(what, Refused) else what
        self.accounts.dropped(self.version + 1)
        self._strikes[rank] = self._strikes.get(rank, 0) + 1
        self.events.tell("rejected", self.version, rank, f"{type(error).__name__}: {error}")
        self.accounts.excuse(rank, self.version + 1)
        awaited = any(rank not in pending.states for pending in self._drafts.values())
        if isinstance(what, WireError) and awaited:
            self.link.fail(rank, error)
            self._lose(rank, "sent a frame that is none in the place of its part of a checkpoint")
        elif self._strikes[rank] >= _STRIKES:
            self.link.fail(rank, WireError(f"rank {rank} sent {_STRIKES} frames in a row that are none", 0))
            self._lose(rank, f"sent {_STRIKES} frames in a row that are none: not listened to any more")
        elif isinstance(what, WireError) and not self._stopping:
            self._rounds.excuse(rank, self.version + 1)

    def _on_group_closed(self, event: GroupClosed) -> None:
        self.accounts.down(event.nbytes, event.version)
        self._added[event.group] = event.added
        for added in event.added:
            self._strikes.pop(added.rank, None)
        self._unfinished.discard(event.group)
        if not self._unfinished:
            self.version += 1
            self._finish_round()

    def _finish_round(self, *, first: bool = False) -> None:
        """Publish the version that is complete now, with word of what follows, and open the next round."""
        version = self.version
        self._stopping = version >= self.last_step or (self.stop_reason is not None and not first)
        every = self.config.eval_freq
        flags = Flag.STOP if self._stopping else Flag.NONE
        if not first and (self._stopping or (every and version % every == 0)):
            flags |= Flag.CHECKPOINT
            self._drafts[version] = _Pending(checkpoint.Draft(self.run.path, version), self._snapshot())
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
        for rank, (step, _) in self._aside.items():
            if step == version:
                self._aside[rank] = step, self._left_out(rank)
        if not self._stopping:
            self._let_in()
        self._begin_clock(flags)
        self._send_round(flags, first=first)
        self._added = [()] * len(self.plan.groups)
        self._publish_if_complete()
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

    def _on_state(self, frame: Frame) -> None:
        self._count_up(frame)
        pending = self._drafts.get(frame.step)
        if pending is None:
            return
        name = checkpoint.worker_file(frame.sender)
        content = bytes(frame.body)
        frame.release()
        try:
            tensors = checkpoint.parse(content, f"the state of rank {frame.sender}")
        except CheckpointError as error:
            raise WireError(str(error), frame.sender) from error
        if not (pending.draft.path / name).exists():  # the worker does not see this directory
            pending.draft.add(name, content)
        pending.states[frame.sender] = {key: value for key, value in tensors.items() if key.startswith("buffer/")}
        self._publish_if_complete()

    def _publish_if_complete(self) -> None:
        """Publish the drafts to which every worker that lives has contributed."""
        for step in [step for step, pending in self._drafts.items() if self._live <= set(pending.states)]:
            self._publish(self._drafts.pop(step))

    def _snapshot(self) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], torch.Tensor] | None:
        """What a checkpoint holds of the master. None under bsp: no round closes before every worker has contributed."""
        if self.config.consistency == "bsp":
            return None
        copies = [{name: value.clone() for name, value in tensors.items()} for tensors in self._weights()[:2]]
        return copies[0], copies[1], self._weights()[2].clone()

    def _weights(self) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], torch.Tensor]:
        return self.parameters.model.state_dict(), self.parameters.state(), torch.from_numpy(self.downlink.replica)

    def _publish(self, pending: _Pending) -> None:
        draft = pending.draft
        with self.tracer.span("checkpoint", step=draft.step):
            draft.keep({checkpoint.worker_file(rank) for rank in pending.states})
            weights, optimizer, replica = pending.weights or self._weights()
            draft.add_tensors(checkpoint.MODEL, {**weights, **_mean_buffers(list(pending.states.values()))})
            draft.add_tensors(checkpoint.OPTIMIZER, optimizer)
            if self.downlink.differs:
                draft.add_tensors(checkpoint.REPLICA, {"replica": replica})
            draft.publish({"workers": len(self.workers)}, self.config.keep_last)

    def _count_up(self, frame: Frame, step: int | None = None) -> None:
        self.accounts.up(HEADER_BYTES + frame.body.size, step)

    def _send_round(self, flags: Flag, *, first: bool) -> None:
        """Declare the version complete, to each worker with the groups of its gradient that were not used and never will be."""
        frames: dict[tuple[int, bytes], list[int]] = {}
        for rank in sorted(self._live):
            now = self.version, [] if first else self._left_out(rank)
            step, left_out = self._aside.pop(rank, now)
            frames.setdefault((step, pack_groups(left_out, len(self.plan.groups))), []).append(rank)
        for (step, body), ranks in frames.items():
            self.link.send(ranks, Kind.ROUND, body, step=step, version=self.version, flags=flags)
            self.accounts.down((HEADER_BYTES + len(body)) * len(ranks), self.version)

    def _left_out(self, rank: int) -> list[int]:
        """The groups of the version's gradient of `rank` that were not used; none where they may be used later."""
        if self.config.consistency in ("ssp", "asp"):
            return []
        return [group for group, added in enumerate(self._added) if all(rank != found.rank for found in added)]

    def _begin_clock(self, flags: Flag) -> None:
        """The deadline of the round that follows; the one that ends tells how long a round usually takes."""
        now, version, every = time.monotonic(), self.version, self.config.hash_every
        if not self._pause:
            self._patience.add(now - self._opened)
        epoch_ends = version % self.accounts.steps_per_epoch == 0
        compares = bool(every) and version % every == 0
        first = version < self.run.before.step + _FIRST_ROUNDS
        self._pause = first or epoch_ends or compares or Flag.CHECKPOINT in flags or bool(self._drafts)
        self._opened, self._seconds = now, self._patience.of_round(pause=self._pause)
        self._deadline = now + self._seconds


def _mean_buffers(states: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Each buffer's mean over the workers; whole numbers (num_batches_tracked): the maximum."""
    found = {}
    for key in states[0] if states else ():
        stacked = torch.stack([state[key] for state in states])
        mean = stacked.mean(0) if stacked.is_floating_point() else stacked.amax(0)
        found[key.removeprefix("buffer/")] = mean
    return found
