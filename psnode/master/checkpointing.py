"""Checkpoints that wait for workers' parts, and their publication in the order of versions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch

from psnode.errors import CheckpointError, WireError
from psnode.exchange.shard.shard import Shard, ShardState
from psnode.master.events import Events
from psnode.master.soundness import first_not_finite, is_finite
from psnode.master.statistics import combined
from psnode.protocol.wire import Flag, Frame
from psnode.records import checkpoint, layout, retention, staging, tensorfile
from psnode.records.directory import RunDirectory
from psnode.records.timeline import Tracer
from psnode.tasks.inventory import batch_statistics, persistent_buffers

Tensors = dict[str, torch.Tensor]
_MOST = 4


@dataclass
class _Pending:
    """A checkpoint that waits for parts of `awaited`. `state`: the shard's; a copy where rounds go on, else it stands still.

    `until`: when the rounds that go on wait no longer for the rest.
    """

    staged: staging.StagedCheckpoint
    awaited: set[int]
    state: ShardState
    until: float
    facts: Mapping[str, object]
    norms: Tensors
    states: dict[int, Tensors] = field(default_factory=dict)


class PendingCheckpoints:
    """The checkpoints that are begun and not published.

    Who is to contribute is fixed when a checkpoint is begun; who returns later holds nothing of that version. None is
    published before those of earlier versions, so that `latest` never moves back. Where rounds go on, weights may change
    while parts are awaited, and are copied. `statistics`: how the buffers are combined of which each worker has
    its own (psnode.tasks.inventory; None: batch norm's). One that the disk does not take is told and given up: the job goes on
    without. An unsound one pushes no other one out (psnode.records.retention).
    """

    def __init__(
        self,
        run: RunDirectory,
        shard: Shard,
        tracer: Tracer,
        events: Events,
        *,
        workers: int,
        job: int = 0,
        statistics: Mapping[str, str] | None = None,
    ) -> None:
        self._run = run
        self._job = job
        self._shard = shard
        self._tracer = tracer
        self._events = events
        self._refused: tuple[int, OSError] | None = None  # the newest version that could not be saved, and why
        self._workers = workers
        self._rounds_go_on = shard.rule.rounds_go_on
        self._rules = batch_statistics(shard.model) if statistics is None else statistics
        self._differing = set[str]()  # buffers of which that was told
        self._means: Tensors = {}  # the mean of the workers' buffers, as last known
        self._means_of = run.resume_point.step  # the version that they are of
        self._pending: dict[int, _Pending] = {}  # by version, ascending
        self.begun = (
            -1 if run.resume_point.checkpoint is None else run.resume_point.step
        )  # the newest version of which one was begun
        self.is_last: Callable[[int], bool] = lambda version: False  # no round follows a version: gradients may wait behind it
        self.doubt: Callable[[], str] = lambda: ""  # the evidence of the losses by now against the newest version
        self._wrecked = set[int]()  # versions with values that are not finite
        self._unsound = set[int]()  # versions of which that was told
        own, trained = shard.model.state_dict(), shard.plan.slices()
        meant = {name for name, value in own.items() if name not in trained and not is_finite(value)}  # masks, say
        self._meant = frozenset(meant - self._rules.keys())

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def missing(self) -> frozenset[int]:
        """The workers whose parts are awaited."""
        return frozenset(rank for pending in self._pending.values() for rank in pending.awaited)

    def awaiting(self, rank: int) -> list[int]:
        """The versions whose checkpoints wait for the part of `rank`, ascending."""
        return [version for version, pending in self._pending.items() if rank in pending.awaited]

    @property
    def statistics(self) -> bytes:
        """The means of the workers' buffers, as last known, as a part that holds nothing else; empty if there are none."""
        return tensorfile.dump({f"buffer/{name}": value for name, value in self._means.items()}) if self._means else b""

    def begin(self, version: int, ranks: Iterable[int], until: float, facts: Mapping[str, object] | None = None) -> bool:
        """Begin the checkpoint of `version`, the newest, with parts of `ranks`; False if there will be none.

        `facts`: entries of its manifest about the run beside the number of workers.
        """
        self.begun = version
        try:
            staged = staging.StagedCheckpoint(self._run.path, version, self._job)
        except OSError as error:
            self._abandon(version, error)
            return False
        state = self._shard.state()
        state = state.copy() if self._rounds_go_on else state
        self._pending[version] = _Pending(staged, set(ranks), state, until, facts or {}, self._shard.norms())
        return True

    def require(self, version: int) -> None:
        """CheckpointError if the last checkpoint, of `version`, could not be saved."""
        if self._refused is not None and self._refused[0] == version:
            error, newest = self._refused[1], checkpoint.latest(self._run.path)
            kept = f"the newest is {newest.name}" if newest else "there is none"
            problem = f"the checkpoint of step {version} cannot be written ({error.strerror or error}), {kept}"
            raise CheckpointError(f"{problem}: make room in {self._run.path} and go on with --resume")

    def hurry(self, now: float) -> None:
        """Publish without the rest checkpoints that have waited too long while rounds went on, or keep too many copies."""
        for version, pending in list(self._pending.items()) if self._rounds_go_on else ():
            if pending.awaited and (now > pending.until or len(self._pending) > _MOST):
                for rank in sorted(pending.awaited):
                    self._events.tell("left out", version, rank, "its part of the checkpoint has not come")
                pending.awaited.clear()
                self.publish()

    def take(self, frame: Frame) -> None:
        """Keep a worker's part. WireError if it is none; one that is not awaited is passed over."""
        pending = self._pending.get(frame.step)
        if pending is None or frame.sender not in pending.awaited:
            frame.release()
            return
        name = checkpoint.worker_file(frame.sender)
        content = bytes(frame.body)
        frame.release()
        try:
            tensors = tensorfile.parse(content, f"the state of rank {frame.sender}")
        except CheckpointError as error:
            raise WireError(str(error), frame.sender) from error
        buffers = {key: value for key, value in tensors.items() if key.startswith("buffer/")}
        if odd := self._odd(buffers):
            raise WireError(f"the state of rank {frame.sender} holds {odd}", frame.sender)
        try:
            if Flag.WRITTEN in frame.flags:
                pending.staged.adopt(name)
            else:
                pending.staged.add(name, content)
        except FileNotFoundError:
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

    def _odd(self, buffers: Tensors) -> str | None:
        """A buffer that the model does not have, or has with another dtype or shape, and its own."""
        own = self._shard.model.state_dict()
        known = {f"buffer/{name}": (own[name].dtype, own[name].shape) for name in persistent_buffers(self._shard.model)}
        for key, value in buffers.items():
            if known.get(key) != (value.dtype, value.shape):
                has = "does not have" if key not in known else f"has as {known[key][0]} of shape {tuple(known[key][1])}"
                return f"{key[:200]}, {value.dtype} of shape {tuple(value.shape)}, which the model {has}"
        return None

    def give_up(self, rank: int) -> None:
        """Wait for no part of `rank` any more; those that it has contributed stay."""
        for pending in self._pending.values():
            pending.awaited.discard(rank)
        self.publish()

    def publish(self) -> None:
        """Publish complete checkpoints, up to the first that is not."""
        while self._pending:
            version = min(self._pending)
            if self._pending[version].awaited:
                return
            try:
                self._publish(self._pending[version])
            except OSError as error:
                self._abandon(version, error)
            else:
                del self._pending[version]

    def _abandon(self, version: int, error: OSError) -> None:
        self._events.tell("not saved", version, None, f"its checkpoint cannot be written: {error.strerror or error}")
        self._refused = version, error
        if (pending := self._pending.pop(version, None)) is not None:
            pending.staged.discard()

    def _publish(self, pending: _Pending) -> None:
        staged = pending.staged
        with self._tracer.span("checkpoint", step=staged.step):
            weights, optimizer, replica, average = pending.state
            self._combine(staged.step, pending.states)
            staged.add_tensors(checkpoint.MODEL, {**weights, **self._means})
            staged.add_tensors(checkpoint.OPTIMIZER, optimizer)
            if average:
                staged.add_tensors(checkpoint.EMA, {**average, **self._means})
            if replica:
                staged.add_tensors(checkpoint.REPLICA, replica)
            if pending.norms:
                staged.add_tensors(checkpoint.NORMS, pending.norms)
            if self.is_last(staged.step) and (waiting := self._shard.waiting()):
                staged.add_tensors(checkpoint.WAITING, waiting)
            plan = layout.digest(self._shard.plan)
            facts = {"workers": self._workers, "plan": plan, **self._run.origin, **pending.facts}
            held = {name: value for name, value in {**weights, **self._means}.items() if name not in self._meant}
            reason = self._wreckage(staged.step, held, optimizer, replica) or self._told_by_losses(facts)
            if reason:
                facts |= retention.verdict(reason)
            staged.publish(facts, preferred=not reason)
            if reason:
                self._tell_unsound(staged.step, reason)
            retention.prune(self._run.path, staged.step, self._run.config.keep_last, self._workers)

    def _told_by_losses(self, facts: Mapping[str, object]) -> str:
        """Evidence of the losses against a checkpoint: those on it if they have come, else the last one."""
        return str(facts.get(retention.REASON, self.doubt() if facts.get(retention.SOUND, True) is None else ""))

    def _wreckage(self, version: int, weights: Tensors, optimizer: Tensors, replica: Tensors) -> str:
        """Tensors of a version that are not finite, for its manifest; empty if all are."""
        found = first_not_finite(weights) or ("the workers' weights" if first_not_finite(replica) else None)
        if found is None and (memory := first_not_finite(optimizer)) is not None:
            found = f"the optimizer's memory {memory}"
        if found is None:
            return ""
        self._wrecked.add(version)
        return f"{found} is not finite"

    def judge(self, version: int, reason: str) -> None:
        """The losses on `version` are known: it is sound, or unsound for a `reason`."""
        if (pending := self._pending.get(version)) is not None:
            pending.facts = {**pending.facts, **retention.verdict(reason)}
            return
        path = self._run.path / checkpoint.CHECKPOINTS / checkpoint.step_directory(version)
        if version in self._wrecked or not path.is_dir():
            return
        try:
            retention.judge(path, reason)
        except (OSError, CheckpointError) as error:
            self._events.tell("not judged", version, None, f"its manifest cannot be written: {error}")
            return
        if reason:
            self._tell_unsound(version, reason)
        retention.prune(self._run.path, version, self._run.config.keep_last, self._workers)

    def _tell_unsound(self, version: int, reason: str) -> None:
        """One line a version, whatever else is found out about it."""
        if version in self._unsound:
            return
        self._unsound.add(version)
        newest = retention.newest_not_unsound(self._run.path)
        step = version if newest is None else checkpoint.step_of(newest)
        where = f"--resume goes on from step {step}" if step != version else "there is no other one yet"
        self._events.tell("unsound", version, None, f"its checkpoint pushes no other one out: {reason}; {where}")

    def _combine(self, version: int, states: Mapping[int, Tensors]) -> None:
        """Take the mean of the workers' buffers; tell if there are buffers, and nobody's have come."""
        if states:
            self._means, self._means_of = self._combined(version, states) or self._means, version
        elif persistent_buffers(self._shard.model):
            reason = f"no worker's part of the checkpoint has come: its buffers are those of step {self._means_of}"
            self._events.tell("old buffers", version, None, reason)

    def _combined(self, version: int, states: Mapping[int, Tensors]) -> Tensors:
        """Combine the workers' buffers. Buffers that should be the same everywhere and are not are told, once each."""
        found, differing = combined(states, self._rules)
        for name in differing:
            if name not in self._differing:
                self._differing.add(name)
                self._events.tell(
                    "differs", version, min(states),
                    f"buffer {name} is not the same on every worker: the checkpoint holds that of rank {min(states)}; "
                    "a statistic is to be named in Task.statistics",
                )  # fmt: skip
        return found
