"""The master's files of a checkpoint: the tensors in each file, and methods that write the files in a thread during training."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch

from psnode.exchange.shard.handle import HeldState, StateHandle, StateParts
from psnode.plans.groups import Plan
from psnode.records import checkpoint, retention, state_names
from psnode.records.checkpoint import FULL, RESIDUALS
from psnode.records.directory import RunDirectory
from psnode.records.snapshots.snapshot import Snapshot
from psnode.records.snapshots.snapshot_memory import SnapshotMemory
from psnode.records.staging import StagedCheckpoint
from psnode.records.tensorfile import Content, content_of
from psnode.tasks.model_tensors import persistent_buffers

Tensors = dict[str, torch.Tensor]


class Draft:
    """The master's files of the checkpoint of the present version of `shard`.

    Construct a draft in the main thread while no group is open. Another thread calls the methods in the order in which they are
    defined here; `discard` replaces the calls that are left. `meant`: names of tensors that may hold NaN or infinity without
    making the checkpoint unsound.
    """

    staged: StagedCheckpoint  # the directory for the files, set after construction

    def __init__(
        self, shard: StateHandle, model: torch.nn.Module, plan: Plan, meant: Collection[str], memory: SnapshotMemory
    ) -> None:
        self._prepare(model, plan, meant)
        self._hold(shard)
        contents = (self._model, self._average, self._optimizer, self._replica)
        self.snapshot = Snapshot((each for content in contents for each in content.tensors.values()), shard.memory(), memory)

    def _prepare(self, model: torch.nn.Module, plan: Plan, meant: Collection[str]) -> None:
        self._meant, self._plan, self._names_of_buffers = meant, state_names.digest(plan), frozenset(persistent_buffers(model))
        self._wrecked: dict[str, str] = {}

    def _hold(self, source: HeldState) -> None:
        state, names = source.state(), self._names_of_buffers
        self._buffers = {name: value for name, value in state.model.items() if name in names}
        self._model, self._average = (
            content_of({name: value for name, value in tensors.items() if name not in names})
            for tensors in (state.model, state.average)
        )
        self._optimizer, self._replica = content_of(state.optimizer), content_of(state.replica)
        self._norms = source.norms()

    def write_state(self) -> None:
        """Write the files that do not depend on workers' parts."""
        self._write(checkpoint.OPTIMIZER, self._optimizer)
        if self._replica.tensors:
            self._write(checkpoint.REPLICA, self._replica)
        if not self._buffers:
            self._write_model({})

    def add(self, name: str, content: bytes) -> None:
        """Write the part that a worker has sent."""
        self.staged.add(name, content)

    def seal(
        self,
        run: RunDirectory,
        means: Tensors,
        waiting: Tensors,
        facts: Mapping[str, object],
        workers: int,
        *,
        preferred: bool = True,
    ) -> str:
        """Write the remaining files, publish the checkpoint and delete checkpoints that are no longer kept.

        `means`: the combined buffers of the workers. `waiting`: gradients for the next round. `facts`: entries of the
        manifest. `preferred`: True if the file `latest` should name this checkpoint, provided that it is not unsound.
        Returns the reason why the checkpoint is unsound, or "" if no reason is known.
        """
        if self._buffers:
            self._write_model(means)
        self.snapshot.close()
        for name, tensors in ((checkpoint.NORMS, self._norms), (checkpoint.WAITING, waiting)):
            if tensors:
                self.staged.add_tensors(name, tensors)
        reason = self.wreckage or str(facts.get(retention.REASON, ""))
        kept = run.config.checkpoint_residuals
        facts = {**({} if kept == FULL else {RESIDUALS: kept}), **facts}
        sealed = {"workers": workers, "plan": self._plan, **run.origin, **facts, **(retention.verdict(reason) if reason else {})}
        self.staged.publish(sealed, preferred=preferred and not reason)
        retention.prune(run.path, self.staged.step, run.config.keep_last, workers)
        return reason

    def discard(self) -> None:
        """Delete the files written so far, and end the draft."""
        self.snapshot.close()
        self.staged.discard()

    @property
    def wreckage(self) -> str:
        """A text about a written tensor with values that are not finite; empty if no checked tensor has such values."""
        if (name := self._wrecked.get(checkpoint.MODEL)) is not None:
            return f"{name} is not finite"
        if checkpoint.REPLICA in self._wrecked:
            return "the workers' weights is not finite"
        memory = self._wrecked.get(checkpoint.OPTIMIZER)
        return "" if memory is None else f"the optimizer's memory {memory} is not finite"

    def _write_model(self, means: Tensors) -> None:
        """Write the model file and the file of averaged weights, both with buffers.

        The buffers are the workers' combined buffers. Where `means` lacks a buffer, rank 0's own buffer is written.
        """
        buffers = content_of({**self._buffers, **means})
        self._write(checkpoint.MODEL, self._model.together(buffers))
        if self._average.tensors:
            self._write(checkpoint.EMA, self._average.together(buffers))

    def _write(self, name: str, content: Content) -> None:
        wrecked = self.staged.add_content(name, content, self.snapshot.read, self._is_checked if name != checkpoint.EMA else None)
        if wrecked is not None:
            self._wrecked[name] = wrecked

    def _is_checked(self, name: str) -> bool:
        return name not in self._meant


class JoinedDraft(Draft):
    """Draft of a version whose state comes in `parts` from other ranks.

    `join` adds a part. It takes the place of `write_state`.
    """

    def __init__(
        self, parts: StateParts, model: torch.nn.Module, plan: Plan, meant: Collection[str], memory: SnapshotMemory
    ) -> None:
        self._prepare(model, plan, meant)
        self._parts = parts
        self.snapshot = Snapshot((), (), memory)  # empty, since the parts are copies

    def join(self, rank: int, content: bytes) -> None:
        """Add the part of `rank`. After the last part, write the files that do not depend on workers' parts.

        Raises PsnodeError if `content` is not the part of `rank`.
        """
        if self._parts.add(rank, content):
            self._hold(self._parts)
            self.write_state()
