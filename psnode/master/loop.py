"""The master: close rounds, publish versions, keep the books and the checkpoints."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Protocol

import torch
import xxhash

from psnode import checkpoint
from psnode.config import Config
from psnode.errors import DeadlineExceededError, DivergedError, PsnodeError
from psnode.link import Link, StopRequest
from psnode.master.accounts import Accounts, Stopwatch
from psnode.master.consistency import RULES, AdditionOrder
from psnode.master.downlink import Downlink
from psnode.master.parameters import Parameters
from psnode.master.reduction import GroupClosed, Reduction
from psnode.messages import Report
from psnode.metrics import StepRecord
from psnode.plan import Plan
from psnode.run_directory import RunDirectory
from psnode.schedules import Schedule
from psnode.timeline import Tracer, parse_events
from psnode.wire import HEADER_BYTES, Flag, Frame, Kind

_FIRST_ROUNDS = 3  # with a longer deadline: kernels compile, caches fill


class Observer(Protocol):
    """Whoever wants to see each record: the log, the progress line."""

    def write(self, record: StepRecord) -> None:
        """Called once a step, in order."""


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
    version: int = 0  # finished updates
    stop_reason: str | None = None
    final_loss: float | None = None
    traces: dict[int, list[dict[str, object]]] = field(default_factory=dict)

    def serve(self) -> None:
        """Run rounds until the last step or a request to stop; returns when the last checkpoint is published."""
        self._live = frozenset(self.workers)
        self._hashes: dict[int, int] = {}
        self._draft: checkpoint.Draft | None = None
        self._states: dict[int, dict[str, torch.Tensor]] = {}
        self._stopping = False
        self.version = self.run.before.step
        for group in self.plan.groups:
            self.accounts.down(self.downlink.send_dense(group, self.version))
        self._finish_round(first=True)
        while not (
            self._stopping and self._draft is None and (not self.config.timeline or len(self.traces) == len(self.workers))
        ):
            self._handle(self._next_event())

    def _next_event(self) -> object:
        try:
            return self.link.next(self._deadline - time.monotonic())
        except DeadlineExceededError:
            waiting = set[int]()
            for order in self._orders:
                waiting |= self._live - order.arrived
            if self._draft is not None:
                waiting |= self._live - set(self._states)
            raise DeadlineExceededError(
                f"no round was finished within {self._patience:g} s after step {self.version}; waiting for ranks "
                f"{', '.join(map(str, sorted(waiting))) or 'none'}: check these hosts, or raise --deadline; go on with --resume"
            ) from None

    def _handle(self, event: object) -> None:
        match event:
            case Frame(kind=Kind.GRADIENT):
                self._on_gradient(event)
            case Frame(kind=Kind.REPORT):
                self._on_report(event)
            case Frame(kind=Kind.STATE):
                self._on_state(event)
            case Frame(kind=Kind.TRACE):
                self.traces[event.sender] = parse_events(bytes(event.body), event.sender)
            case Frame(kind=Kind.REQUEST):
                self._count_up(event)
                self._request_stop(bytes(event.body).decode("ascii", "replace"))
            case GroupClosed():
                self._on_group_closed(event)
            case StopRequest():
                self._request_stop(event.reason)
            case Frame():
                raise PsnodeError(f"the master does not expect {event.kind.name} frames (from rank {event.sender})")

    def _request_stop(self, reason: str) -> None:
        self.stop_reason = self.stop_reason or reason

    def _on_gradient(self, frame: Frame) -> None:
        step = self.version + 1
        self._count_up(frame, step)
        late = frame.version != self.version or frame.step != step or self._stopping
        if late or frame.group >= len(self.plan.groups) or frame.sender in self._orders[frame.group].arrived:
            self.accounts.dropped(step)
            frame.release()
            return
        order = self._orders[frame.group]
        for ready in order.offer(frame.sender, frame):
            self.reduction.add(ready)
        if RULES[self.config.consistency](order.arrived, self._live):
            self.reduction.close(frame.group, step, len(order.arrived), self.schedule(step - 1))

    def _on_group_closed(self, event: GroupClosed) -> None:
        self.accounts.down(event.nbytes, event.version)
        self._open_groups.discard(event.group)
        if not self._open_groups:
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
            self._draft = checkpoint.Draft(self.run.path, version)
            self._states = {}
        if not first:
            self.accounts.close(version, self.schedule(version - 1), len(self._live), self.watch.take())
        if self.config.hash_every and version and version % self.config.hash_every == 0:
            self._hashes = {version: xxhash.xxh3_64_intdigest(self.downlink.replica.data)}
        self._orders = [
            AdditionOrder[Frame](self.workers, by_rank=self.config.aggregate_order == "rank") for _ in self.plan.groups
        ]
        self._open_groups = {group.index for group in self.plan.groups}
        slow = version < self.run.before.step + _FIRST_ROUNDS or Flag.CHECKPOINT in flags
        self._patience = self.config.deadline * (3 if slow else 1)
        self._deadline = time.monotonic() + self._patience
        self._send_all(Kind.ROUND, flags)

    def _on_report(self, frame: Frame) -> None:
        self._count_up(frame, frame.step)
        report = Report.from_bytes(frame.body, frame.sender)
        expected = self._hashes.get(frame.version)
        if report.replica_hash is not None and expected is not None and report.replica_hash != expected:
            raise DivergedError(
                f"rank {frame.sender} computed step {frame.step} on weights that differ from the published version "
                f"{frame.version}: its memory or a message was corrupted; go on with --resume"
            )
        self.accounts.report(frame.step, report)
        for record in self.accounts.due():
            self.final_loss = record.loss
            self.observer.write(record)

    def _on_state(self, frame: Frame) -> None:
        self._count_up(frame)
        draft = self._draft
        if draft is None or frame.step != draft.step:
            return
        name = checkpoint.worker_file(frame.sender)
        content = bytes(frame.body)
        frame.release()
        if not (draft.path / name).exists():  # the worker does not see this directory
            draft.add(name, content)
        tensors = checkpoint.parse(content, f"the state of rank {frame.sender}")
        self._states[frame.sender] = {key: value for key, value in tensors.items() if key.startswith("buffer/")}
        if self._live <= set(self._states):
            self._publish(draft)
            self._draft = None

    def _publish(self, draft: checkpoint.Draft) -> None:
        """Every worker has contributed and none has sent a later gradient yet, so x is still that of the draft's step."""
        with self.tracer.span("checkpoint", step=draft.step):
            model = {**self.parameters.model.state_dict(), **_mean_buffers(list(self._states.values()))}
            draft.add_tensors(checkpoint.MODEL, model)
            draft.add_tensors(checkpoint.OPTIMIZER, self.parameters.state())
            if self.downlink.differs:
                replica = torch.from_numpy(self.downlink.replica)
                draft.add_tensors(checkpoint.REPLICA, {"replica": replica})
            draft.publish({"workers": len(self.workers)}, self.config.keep_last)

    def _count_up(self, frame: Frame, step: int | None = None) -> None:
        self.accounts.up(HEADER_BYTES + frame.body.size, step)

    def _send_all(self, kind: Kind, flags: Flag = Flag.NONE) -> None:
        self.link.send(self.workers, kind, step=self.version, version=self.version, flags=flags)
        self.accounts.down(HEADER_BYTES * len(self.workers), self.version)


def _mean_buffers(states: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Each buffer's mean over the workers; whole numbers (num_batches_tracked): the maximum."""
    found = {}
    for key in states[0]:
        stacked = torch.stack([state[key] for state in states])
        mean = stacked.mean(0) if stacked.is_floating_point() else stacked.amax(0)
        found[key.removeprefix("buffer/")] = mean
    return found
