"""The answer of a shard to the order "hand_over": its state of one version, sent while later rounds change it."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from psnode.config.cores import stand_back
from psnode.exchange.shard.handle import StateHandle
from psnode.exchange.shard.remote.gathered_state import state_files
from psnode.exchange.shard.remote.shard_messages import content_of_files
from psnode.plans.roles import MASTER
from psnode.protocol.channel import FrameChannel
from psnode.protocol.wire import Kind
from psnode.records import tensorfile
from psnode.records.snapshots.snapshot import Snapshot, size_of
from psnode.records.snapshots.snapshot_memory import SnapshotMemory
from psnode.records.timeline import Tracer


class StateSender:
    """Sends the state of `shard` to the master in a thread.

    Values are copied before an update changes them, unless they have been read already (psnode.records.snapshots.snapshot).
    `memory`: the maximum number of bytes for these copies; 0 means a quarter of the free memory.
    """

    def __init__(self, link: FrameChannel, shard: StateHandle, tracer: Tracer, memory: int) -> None:
        self._link, self._shard, self._tracer = link, shard, tracer
        self._memory = SnapshotMemory(memory)
        self._snapshot: Snapshot | None = None
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"state-{link.rank}")
        self._last: Future[None] | None = None
        shard.before_change(self._protect)

    def prepare(self) -> None:
        """Allocate memory in advance for the copies."""
        self._executor.submit(self._memory.prepare, size_of(self._shard.memory()))

    def begin(self, order: int) -> None:
        """Begin to send the present state as the answer to the order with number `order`. Call this while no group is open.

        A state that is not yet sent is given up: the master begins a second checkpoint only if it no longer waits for the first.
        """
        if self._last is not None and self._snapshot is not None:
            self._snapshot.close()
            self._last.result()
        with self._tracer.span("snapshot"):
            content = content_of_files(state_files(self._shard), {})
            self._snapshot = Snapshot(content.tensors.values(), self._shard.memory(), self._memory)
        self._last = self._executor.submit(self._send, order, content, self._snapshot)

    def close(self) -> None:
        """End the thread, even if a state is not yet sent."""
        self._memory.close()
        if self._snapshot is not None:
            self._snapshot.close()
        self._executor.shutdown(cancel_futures=True)

    def _protect(self, group: int) -> None:
        if self._snapshot is not None:
            self._snapshot.protect(group)

    def _send(self, order: int, content: tensorfile.Content, snapshot: Snapshot) -> None:
        stand_back()
        try:
            with self._tracer.span("hand over"):
                body = tensorfile.assembled(content, snapshot.read)
                self._link.send(MASTER, Kind.ANSWER, body, step=order)
        except OSError:  # the snapshot was closed, since nobody waits for it
            return
        except Exception as error:
            self._link.fail(MASTER, error)
        finally:
            snapshot.close()
