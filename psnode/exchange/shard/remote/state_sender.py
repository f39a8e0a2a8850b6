"""State of a shard that the master fetches in pieces while later rounds change the shard.

The orders "hand_over" and "next_piece" begin the transfer and request a piece.
"""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial

from psnode.exchange.shard.handle import StateHandle
from psnode.exchange.shard.remote.gathered_state import state_files
from psnode.exchange.shard.remote.shard_messages import content_of_files
from psnode.plans.roles import MASTER
from psnode.protocol.channel import FrameChannel
from psnode.protocol.wire import Kind
from psnode.records import tensorfile
from psnode.records.snapshots.snapshot import Snapshot
from psnode.records.snapshots.snapshot_thread import SnapshotThread
from psnode.records.timeline import Tracer

PIECE = 1 << 18  # bytes; a frame of a round waits behind one piece at most


class StateSender:
    """Reads the state of `shard` in a thread, and sends it to the master, one piece for each request.

    If an update is about to change values that have not been read yet, they are copied first
    (psnode.records.snapshots.snapshot). `memory`: the maximum number of bytes for these copies; 0 means a quarter of the free
    memory.
    """

    def __init__(self, link: FrameChannel, shard: StateHandle, tracer: Tracer, memory: int) -> None:
        self._link, self._shard, self._tracer = link, shard, tracer
        self._thread = SnapshotThread(f"state-{link.rank}", memory)
        self._left = memoryview(b"")  # what is not yet sent of the state, in the form of a safetensors file
        self._whole = 0  # its number of bytes at the beginning
        self._read: Future[None] | None = None
        shard.before_change(self._thread.protect)

    def prepare(self) -> None:
        """Allocate the memory for the copies in advance."""
        self._thread.prepare(self._shard.memory())

    def begin(self) -> None:
        """Take the present state. Call this while no group is open.

        A state that is not completely sent is given up, because the master no longer waits for it when it begins another
        checkpoint.
        """
        self._thread.give_up()
        with self._tracer.span("snapshot"):
            content = content_of_files(state_files(self._shard), {})
            self._read = self._thread.begin(content.tensors.values(), self._shard.memory(), partial(self._pack, content))

    def answer(self, order: int) -> None:
        """Send the next piece of the state as soon as the state has been read.

        `order`: the number of the order that requests the piece.
        """
        if self._read is not None:
            self._read.add_done_callback(lambda read: self._send(order))

    def close(self) -> None:
        """End the thread, even if a state is not completely sent."""
        self._thread.close()

    def _pack(self, content: tensorfile.Content, snapshot: Snapshot) -> None:
        try:
            with self._tracer.span("hand over"):
                self._left = tensorfile.assembled(content, snapshot.read).data
                self._whole = len(self._left)
        except OSError:  # the state was given up
            self._left, self._whole = memoryview(b""), 0
        except Exception as error:
            self._link.fail(MASTER, error)

    def _send(self, order: int) -> None:
        piece, self._left = bytes(self._left[:PIECE]), self._left[PIECE:]
        if not self._left:
            self._left = memoryview(b"")  # release the memory
        self._link.send(MASTER, Kind.ANSWER, piece, step=order, version=self._whole)
