"""A thread that reads snapshots of one version after another, while training goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from psnode.config.cores import stand_back
from psnode.records.snapshots.snapshot import Snapshot, size_of
from psnode.records.snapshots.snapshot_memory import SnapshotMemory

if TYPE_CHECKING:
    import torch


class SnapshotThread:
    """Reads snapshots in a thread of low priority. One thread calls the methods, except `protect`.

    `memory`: the maximum number of bytes for copies; 0 means a quarter of the free memory.
    """

    def __init__(self, name: str, memory: int) -> None:
        self._memory = SnapshotMemory(memory)
        self._snapshot: Snapshot | None = None
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._last: Future[None] | None = None

    def prepare(self, parts: Sequence[Iterable[torch.Tensor]]) -> None:
        """Allocate memory in advance for copies of `parts`."""
        self._executor.submit(self._memory.prepare, size_of(parts))

    def begin(
        self, tensors: Iterable[torch.Tensor], parts: Sequence[Iterable[torch.Tensor]], work: Callable[[Snapshot], None]
    ) -> Future[None]:
        """Take a snapshot of `tensors` (see Snapshot), and call `work` with it in the thread."""
        self._snapshot = snapshot = Snapshot(tensors, parts, self._memory)
        self._last = self._executor.submit(self._run, work, snapshot)
        return self._last

    def protect(self, part: int) -> None:
        """Copy the unread bytes of `part` before they change. Any thread may call this method."""
        if (snapshot := self._snapshot) is not None:
            snapshot.protect(part)

    def finish(self) -> None:
        """Block until the last work is done."""
        if self._last is not None:
            self._last.result()

    def give_up(self) -> None:
        """Make the reading of the last snapshot fail with OSError, unless it is done, and block until its work has ended."""
        if self._snapshot is not None:
            self._snapshot.close()
        self.finish()

    def close(self) -> None:
        """End the thread, even if the last work is unfinished."""
        self._memory.close()
        if self._snapshot is not None:
            self._snapshot.close()
        self._executor.shutdown(cancel_futures=True)

    def _run(self, work: Callable[[Snapshot], None], snapshot: Snapshot) -> None:
        stand_back()
        try:
            work(snapshot)
        finally:
            snapshot.close()
