"""Checkpoints that are due, or begun but not yet published: the awaited parts of workers, and the order of publication."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch

from psnode.errors import CheckpointError, WireError
from psnode.exchange.shard.handle import StateHandle
from psnode.exchange.shard.shard_events import StatePart
from psnode.master.checkpoints.buffers import WorkerBuffers, unknown_buffer
from psnode.master.checkpoints.checkpoint_thread import CheckpointThread
from psnode.master.checkpoints.contents import Draft, JoinedDraft
from psnode.master.checkpoints.last_whole import LastWhole
from psnode.master.checkpoints.soundness import Verdicts
from psnode.master.events import Events
from psnode.plans.groups import Plan
from psnode.protocol.wire import Flag, Frame
from psnode.records import checkpoint, retention, staging, tensorfile
from psnode.records.directory import RunDirectory
from psnode.records.snapshots.snapshot import Snapshot, size_of
from psnode.records.snapshots.snapshot_memory import SnapshotMemory
from psnode.records.timeline import Tracer
from psnode.tasks import tensor_names
from psnode.tasks.model_tensors import batch_statistics, observed, persistent_buffers

Tensors = dict[str, torch.Tensor]
_MOST = 4


@dataclass
class BegunCheckpoint:
    """A checkpoint that waits for parts of the ranks in `awaited`, or is `sealed` and waits for the disk.

    `handing`: ranks that have to hand over their shard's state, which should come before the time `handed_by`
    (time.monotonic). `until`: under a rule whose rounds close without the slowest workers, the checkpoint is published after
    this time even if parts are missing. `facts`: entries of its manifest. `states`: by rank, the buffers in the parts that
    have come.
    """

    draft: Draft
    awaited: set[int]
    until: float
    facts: Mapping[str, object]
    handing: set[int] = field(default_factory=set)
    handed_by: float = math.inf
    states: dict[int, Tensors] = field(default_factory=dict)
    sealed: bool = False
    failure: Exception | None = None  # of the writing thread
    preferred: bool = True  # True if `latest` shall name the checkpoint, unless it is unsound


class PendingCheckpoints:
    """The checkpoints that are begun and not yet published. Only the master's main thread uses them; another thread writes.

    The contributing workers are fixed when a checkpoint begins, since a worker that returns later has no data of that version.
    Checkpoints are published in the order of their versions, so that `latest` never moves back. Weights may change while a
    checkpoint is written (psnode.records.snapshots.snapshot). A checkpoint that cannot be written is reported and given up, and
    the job continues. An unsound checkpoint does not cause older checkpoints to be deleted (psnode.records.retention).

    `statistics`: the rule for each buffer that depends on a worker's own data (psnode.tasks.model_tensors); None means the
    rules for the statistics of torch's norms and quantisation observers. `tell` is called in the writing thread with events for
    the main thread, which then has to call `settle`.
    """

    def __init__(
        self,
        run: RunDirectory,
        shard: StateHandle,
        model: torch.nn.Module,
        plan: Plan,
        tracer: Tracer,
        events: Events,
        *,
        workers: int,
        rounds_go_on: bool,
        job: int = 0,
        statistics: Mapping[str, str] | None = None,
        tell: Callable[[object], None] = lambda event: None,
    ) -> None:
        self._run = run
        self._job = job
        self._shard = shard
        self._model = model
        self._tracer = tracer
        self._events = events
        self._refused: tuple[int, Exception] | None = None  # the newest version that could not be saved, and the error
        self._workers = workers
        self._rounds_go_on = rounds_go_on
        self._rules = batch_statistics(model) if statistics is None else statistics
        self._buffers = WorkerBuffers(self._rules, events, run.resume_point.step)
        self._pending: dict[int, BegunCheckpoint] = {}  # in ascending order of versions
        self._memory = SnapshotMemory(run.config.checkpoint_memory)
        self._thread = CheckpointThread(tell, tracer)
        self._snapshots: tuple[Snapshot, ...] = ()
        shard.before_change(self._protect)
        self.begun = (
            -1 if run.resume_point.checkpoint is None else run.resume_point.step
        )  # the newest version with a checkpoint that was begun
        self.is_last: Callable[[int], bool] = lambda version: False  # if True, gradients may wait for a resumed run
        self.doubt: Callable[[], str] = lambda: ""  # the evidence against the newest version in the losses so far
        self._verdicts = Verdicts(run, self._thread, events, workers)
        own, trained = tensor_names.state(model), plan.slices()
        meant = {name for name, value in own.items() if name not in trained and not tensorfile.is_finite(value)}  # e.g. masks
        self._meant = frozenset(meant - (self._rules.keys() - observed(model).keys()))  # observers begin with infinity
        self._draft = partial(Draft, shard, model, plan, self._meant)
        self._joined = partial(JoinedDraft, model=model, plan=plan, meant=self._meant)
        self.last_whole = LastWhole(shard, self._draft, run.config.checkpoint_memory)
        if run.config.saves_amid:
            self._thread.prepare(partial(self._memory.prepare, size_of(shard.memory())))

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def missing(self) -> frozenset[int]:
        """The workers whose parts are awaited, and the ranks that have not handed over their shard's state in time."""
        return frozenset(
            rank
            for pending in self._pending.values()
            for rank in pending.awaited | (pending.handing if time.monotonic() > pending.handed_by else set())
        )

    @property
    def in_flight(self) -> bool:
        """True if no other checkpoint may begin yet, since the last checkpoint is not on the disk.

        Under a rule whose rounds close without the slowest workers, a checkpoint that only waits for workers' parts does not
        count.
        """
        return self.writing or (bool(self._pending) and not self._rounds_go_on)

    @property
    def writing(self) -> bool:
        """True if the writing thread has work whose result is not processed, or if shards still have time to hand over state."""
        now = time.monotonic()
        return self._thread.busy or any(each.handing and now <= each.handed_by for each in self._pending.values())

    def awaiting(self, rank: int) -> list[int]:
        """Return in ascending order the versions whose checkpoints wait for the part of `rank`."""
        return [version for version, pending in self._pending.items() if rank in pending.awaited]

    @property
    def statistics(self) -> bytes:
        """The last known combined buffers of the workers, in the format of a worker's part; empty if there are no buffers."""
        return self._buffers.part

    def begin(self, version: int, ranks: Iterable[int], until: float, facts: Mapping[str, object] | None = None) -> bool:
        """Begin the checkpoint of the newest version, `version`, with parts of `ranks`. Return False if it cannot be written.

        Call this while no group is open. `until`: see BegunCheckpoint. `facts`: further entries of the manifest.
        """
        self.begun = version
        with self._tracer.span("snapshot", step=version):
            if (staged := self._staged(version)) is None:
                return False
            parts = None if self.is_last(version) else self._shard.hand_over(version)  # nothing is trained beside the last
            draft = self._draft(self._memory) if parts is None else self._joined(parts, memory=self._memory)
            draft.staged = staged
        pending = self._pending[version] = BegunCheckpoint(draft, set(ranks), until, facts or {})
        self._snapshots = (*self._snapshots, draft.snapshot)
        if parts is None:
            self._write(version, draft.write_state)
        else:
            pending.handing, pending.handed_by = set(parts.ranks), time.monotonic() + parts.seconds
        return True

    def begin_evaluated(self, version: int, rank: int, until: float) -> bool:
        """Begin a checkpoint of the newest complete version, `version`, since worker `rank` has evaluated it.

        No checkpoint of this version was due. The checkpoint contains only the part of that worker, since the other workers
        have continued. Therefore `latest` still names the previous checkpoint, from which all workers can resume. Returns
        False if a group has changed since that version, or if the checkpoint cannot be written.
        """
        facts = self.last_whole.untouched(version)
        if facts is None or version <= self.begun or (staged := self._staged(version)) is None:
            return False
        draft = self._draft(self._memory)
        draft.staged = staged
        if self.last_whole.untouched(version) is None:  # a group has changed since: a draft would mix two versions
            self._thread.do(version, draft.discard)
            return False
        facts = {**facts, **retention.verdict("")}  # sound: the program has evaluated the loss of this version
        self._pending[version] = BegunCheckpoint(draft, {rank}, until, facts, preferred=False)
        self._snapshots = (*self._snapshots, draft.snapshot)
        self._write(version, draft.write_state)
        return True

    def rescue(self) -> int | None:
        """Save the last complete version when the job ends before the next version is complete.

        Checkpoints that have begun are finished without the workers' parts that have not come. Blocks until everything is
        written. Returns the version of the newest checkpoint that was begun, or None if this checkpoint could not be written.
        """
        for rank in {rank for pending in self._pending.values() for rank in pending.awaited | pending.handing}:
            self.give_up(rank)
        found = self.last_whole.take()
        if found is not None and found[0] > self.begun:
            version, draft, facts = found
            self.begun = version
            if (staged := self._staged(version)) is not None:
                draft.staged = staged
                self._pending[version] = BegunCheckpoint(draft, set(), math.inf, facts)
                self._write(version, draft.write_state)
                self.publish()
        self.finish()
        return self.begun if self._refused is None or self._refused[0] != self.begun else None

    def _staged(self, version: int) -> staging.StagedCheckpoint | None:
        try:
            if self._run.restore():
                self._events.tell("restored", version, None, "config.json was removed by another process: it is written anew")
            return staging.StagedCheckpoint(self._run.path, version, self._job)
        except OSError as error:
            self._abandon(version, error)
            return None

    def require(self, version: int) -> None:
        """Raise CheckpointError if the checkpoint of the last version, `version`, could not be written."""
        if self._refused is not None and self._refused[0] == version:
            error, newest = self._refused[1], checkpoint.latest(self._run.path)
            kept = f"the newest is {newest.name}" if newest and newest.is_dir() else "there is none"
            problem = f"the checkpoint of step {version} cannot be written ({_why(error)}), {kept}"
            remedy = "let nothing delete what is in" if isinstance(error, FileNotFoundError) else "make room in"
            raise CheckpointError(f"{problem}: {remedy} {self._run.path} and go on with --resume")

    def hurry(self, now: float) -> None:
        """Publish checkpoints without their missing parts if they have waited too long, or if too many checkpoints wait.

        Do nothing unless the rule closes rounds without the slowest workers. `now`: the time by the job's clock.
        """
        for version, pending in list(self._pending.items()) if self._rounds_go_on else ():
            waiting = sum(bool(each.awaited) for each in self._pending.values())
            if pending.awaited and (now > pending.until or waiting > _MOST):
                for rank in sorted(pending.awaited):
                    self._events.tell("left out", version, rank, "its part of the checkpoint has not come")
                pending.awaited.clear()
                self.publish()

    def take(self, frame: Frame) -> None:
        """Add a worker's part to its checkpoint, or ignore a part that is not awaited. Raises WireError for a malformed part."""
        pending = self._pending.get(frame.step)
        if pending is None or frame.sender not in pending.awaited:
            frame.release()
            return
        name = checkpoint.worker_file(frame.sender)
        content = bytes(frame.body)
        frame.release()
        try:
            tensors = tensorfile.parse(content, f"the state of rank {frame.sender}")
            written = staging.told(tensors, frame.sender) if Flag.WRITTEN in frame.flags else None
        except CheckpointError as error:
            raise WireError(str(error), frame.sender) from error
        buffers = {key: value for key, value in tensors.items() if key.startswith("buffer/")}
        if odd := unknown_buffer(buffers, self._model):
            raise WireError(f"the state of rank {frame.sender} holds {odd}", frame.sender)
        try:
            if isinstance(written, OSError):
                raise written
            if written is not None:
                pending.draft.staged.adopt(name, written)
            else:
                self._write(frame.step, partial(pending.draft.add, name, content))
        except FileNotFoundError as error:
            if not pending.draft.staged.is_there():
                self._abandon(frame.step, error)
                return
            self._events.tell("left out", frame.step, frame.sender, "its part of the checkpoint is not where it has written it")
            pending.awaited.discard(frame.sender)
            self.publish()
            return
        except OSError as error:
            self._abandon(frame.step, error)
            return
        pending.states[frame.sender] = buffers
        pending.awaited.discard(frame.sender)
        self.publish()

    def join(self, part: StatePart) -> None:
        """Add the state that a shard on another rank has handed over, or ignore state that is not awaited."""
        pending = self._pending.get(part.version)
        if pending is None or part.rank not in pending.handing or not isinstance(pending.draft, JoinedDraft):
            return
        self._write(part.version, partial(pending.draft.join, part.rank, part.content))
        pending.handing.discard(part.rank)
        self.publish()

    def give_up(self, rank: int) -> None:
        """Stop waiting for parts of `rank`, but keep the parts that have come.

        Abandon the checkpoints that still need the state of a shard on `rank`.
        """
        for version, pending in list(self._pending.items()):
            pending.awaited.discard(rank)
            if rank in pending.handing:
                self._abandon(version, CheckpointError(f"rank {rank} is lost and has not handed over the state"))
        self.publish()

    def publish(self) -> None:
        """Queue the publication of checkpoints in order, up to the first that still waits for a part."""
        for version, pending in list(self._pending.items()):
            if pending.awaited or pending.handing:
                return
            if not pending.sealed:
                pending.sealed = True
                self._seal(version, pending)

    def _seal(self, version: int, pending: BegunCheckpoint) -> None:
        self._buffers.combine(version, pending.states, there=bool(persistent_buffers(self._model)))
        means, facts = self._buffers.means, {**pending.facts}
        waiting = self._shard.waiting() if self.is_last(version) else {}
        if facts.get(checkpoint.SOUND, True) is None and (doubt := self.doubt()):
            facts[retention.REASON] = doubt

        def seal() -> str:
            reason = pending.draft.seal(self._run, means, waiting, facts, self._workers, preferred=pending.preferred)
            if pending.draft.wreckage:
                self._verdicts.condemn(version)
            return reason

        self._write(version, seal)

    def settle(self) -> None:
        """Process the results of the work that the writing thread has done since the last call."""
        self._thread.settle()

    def finish(self) -> None:
        """Block until all queued work is written. Checkpoints may still wait for workers' parts afterwards."""
        while self._thread.busy:
            self._thread.wait()
            self.settle()

    def close(self) -> None:
        """Finish the checkpoints that wait only for the disk, drop all others, and end the thread."""
        self._memory.close()
        self.last_whole.close()
        for version, pending in list(self._pending.items()):
            if not pending.sealed:
                self._drop(version)
                self._thread.do(version, pending.draft.discard)
        self.finish()
        self._thread.close()

    def _write(self, version: int, work: Callable[[], str | None]) -> None:
        """Queue `work` on the checkpoint of `version`. If it fails, abandon the checkpoint and do no more work on it.

        The last work on a checkpoint publishes it and returns the reason why it is unsound, or ""; earlier work returns
        None.
        """

        def then(reason: str | None, error: Exception | None) -> None:
            if version in self._pending and error is not None:
                self._abandon(version, error)
            elif version in self._pending and reason is not None:
                self._drop(version)
                if reason:
                    self._verdicts.tell(version, reason)

        pending = self._pending[version]

        def unless_failed() -> str | None:
            if pending.failure is not None:  # otherwise a checkpoint without a file could be published
                raise pending.failure
            try:
                return work()
            except Exception as error:
                pending.failure = error
                raise

        self._thread.do(version, unless_failed, then)

    def _drop(self, version: int) -> BegunCheckpoint | None:
        """Remove the checkpoint of `version` from the pending checkpoints, release its copies and return it."""
        pending = self._pending.pop(version, None)
        if pending is not None:
            pending.draft.snapshot.close()
        self._snapshots = tuple(each.draft.snapshot for each in self._pending.values())
        return pending

    def _protect(self, group: int) -> None:
        """Copy the values of `group`, before they change, for the checkpoints being written.

        Lanes (update threads) call this method.
        """
        for snapshot in self._snapshots:
            snapshot.protect(group)
        self.last_whole.protect(group)

    def _abandon(self, version: int, error: Exception) -> None:
        self._events.tell("not saved", version, None, f"its checkpoint cannot be written: {_why(error)}")
        self._refused = version, error
        if (pending := self._drop(version)) is not None:
            self._thread.do(version, pending.draft.discard)
            self.publish()

    def judge(self, version: int, reason: str) -> None:
        """Record the verdict on `version` from its losses: unsound for `reason`, or sound if `reason` is empty."""
        pending = self._pending.get(version)
        if pending is not None and not pending.sealed:
            pending.facts = {**pending.facts, **retention.verdict(reason)}
        else:
            self._verdicts.judge(version, reason)


def _why(error: Exception) -> str:
    removed = isinstance(error, FileNotFoundError)
    return "another process has removed files of it" if removed else str(getattr(error, "strerror", None) or error)
