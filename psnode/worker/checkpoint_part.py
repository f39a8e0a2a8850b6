"""A worker's parts of checkpoints, written by a thread during training."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch

from psnode.exchange.sender import GradientSender
from psnode.plans.roles import MASTER
from psnode.protocol.channel import FrameChannel
from psnode.protocol.wire import Flag, Kind
from psnode.records import checkpoint, staging, tensorfile
from psnode.records.snapshots.snapshot import Snapshot
from psnode.records.snapshots.snapshot_thread import SnapshotThread
from psnode.records.state_names import FEEDBACK
from psnode.records.timeline import Tracer

Tensors = dict[str, torch.Tensor]


class CheckpointParts:
    """Writes this worker's part of each checkpoint, or sends it to the master, in a thread.

    A part holds the residuals and other feedback state of `sender`, and further tensors. `directory`: the run's directory if this
    rank can read it, or None if parts have to be sent. `memory`: the maximum number of bytes for copies of the residuals; 0 means
    a quarter of the free memory. `residuals`: full, bf16 or none, see --checkpoint-residuals.
    """

    def __init__(
        self, link: FrameChannel, directory: Path | None, sender: GradientSender, tracer: Tracer, memory: int, residuals: str
    ) -> None:
        self._link, self._directory, self._sender, self._tracer = link, directory, sender, tracer
        self._residuals = residuals
        self._thread = SnapshotThread(f"part-{link.rank}", memory)
        sender.before_change = self._thread.protect

    def prepare(self) -> None:
        """Allocate memory in advance for the copies that a checkpoint during training needs."""
        if self._residuals != checkpoint.NONE:
            self._thread.prepare(self._sender.memory())

    def begin(self, step: int, others: Mapping[str, torch.Tensor]) -> None:
        """Begin the part of the checkpoint of `step`, with the present residuals and `others`, which must not change.

        Blocks until the previous part is finished.
        """
        self.finish()
        with self._tracer.span("snapshot", step=step):
            memories = {} if self._residuals == checkpoint.NONE else self._sender.state()
            give = partial(self._give, step, memories, dict(others))
            self._thread.begin(memories.values(), self._sender.memory(), give)

    def finish(self) -> None:
        """Block until the last part is written or sent."""
        self._thread.finish()

    def close(self) -> None:
        """End the thread, even if a part is unfinished."""
        self._thread.close()

    def _give(self, step: int, memories: Tensors, others: Tensors, snapshot: Snapshot) -> None:
        try:
            with self._tracer.span("checkpoint", step=step):
                self._hand_in(step, memories, others, snapshot)
        except Exception as error:  # raised in the training thread
            self._link.inbox.post(error)

    def _hand_in(self, step: int, memories: Tensors, others: Tensors, snapshot: Snapshot) -> None:
        buffers = {name: value for name, value in others.items() if name.startswith("buffer/")}
        try:
            if self._directory is not None:
                content = tensorfile.content_of({**memories, **others}, halved=self._is_halved)
                found = staging.write_part(self._directory, step, self._link.job, self._link.rank, content, snapshot.read)
                self._send(step, {**buffers, **staging.tell(found)}, Flag.WRITTEN)
                return
        except OSError as error:
            # If the directory is gone, the checkpoint was given up or removed; only the master knows which.
            # If rewind() fails, the part cannot be sent instead, since some residuals have changed.
            if isinstance(error, FileNotFoundError) or not snapshot.rewind():
                self._send(step, {**buffers, **staging.tell(error)}, Flag.WRITTEN)
                return
        self._send(step, {name: self._read(name, value, snapshot) for name, value in memories.items()} | others, Flag.NONE)

    def _read(self, name: str, value: torch.Tensor, snapshot: Snapshot) -> torch.Tensor:
        copy = np.empty(value.nbytes, np.uint8)
        snapshot.read(value, 0, copy)
        found = torch.from_numpy(copy).view(value.dtype).view(value.shape)
        return found.bfloat16() if self._is_halved(name) and found.dtype is torch.float32 else found

    def _is_halved(self, name: str) -> bool:
        return self._residuals == "bf16" and name.startswith(FEEDBACK)

    def _send(self, step: int, tensors: Tensors, flags: Flag) -> None:
        self._link.send(MASTER, Kind.STATE, tensorfile.dump(tensors), step=step, version=step, flags=flags)
