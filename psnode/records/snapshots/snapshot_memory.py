"""Memory for copies: a single block per rank, which is reused. A copy takes the lowest free addresses that have room for it."""

from __future__ import annotations

import threading
from typing import NamedTuple

from psnode.codecs.arrays import Bytes
from psnode.codecs.pages import Pages
from psnode.config.memory import free_memory, memory

_SHARE = 4  # the limit is the free memory divided by this
_CHUNK = 1 << 23  # bytes prepared at a time, during which no copy can take memory


class Allocation(NamedTuple):
    """Memory for a copy: `raw`, which begins at byte `start` of the block."""

    start: int
    raw: Bytes


class SnapshotMemory:
    """Memory for the copies of a rank's snapshots, at most `limit` bytes; 0 means a quarter of the memory free at `begin`.

    A system needs more time to clear new pages than to copy data. Therefore the pages of earlier snapshots are reused,
    unless the system has reclaimed them. The caller of `begin`, `take`, `give_back` or `rest` must hold `changed`.
    """

    def __init__(self, limit: int) -> None:
        self.changed = threading.Condition()
        self._limit = limit
        self._pages: Pages | None = None
        self._end = 0  # end of the part of the block that copies may take
        self._used = 0  # bytes from the block's start that copies have used since the last release to the system
        self._holes: list[tuple[int, int]] = []  # begin and end of the free ranges, ascending, never adjacent
        self._begun = self._closed = False
        self.taken = 0  # bytes in use by copies

    def prepare(self, size: int) -> None:
        """Touch the pages that a first snapshot of `size` bytes will need. Stop when the snapshot begins."""
        with self.changed:
            self._measure()
        for start in range(0, size, _CHUNK):
            with self.changed:
                stop = min(start + _CHUNK, size, self._end)
                if self._begun or self._pages is None or stop <= start:
                    return
                self._pages.touch(start, stop)
                self._pages.release(start, stop)

    def close(self) -> None:
        """Drop the block: later snapshots get no memory for copies.

        Memory of copies in use stays until it is given back.
        """
        with self.changed:
            self._begun = self._closed = True
            self.rest()

    def begin(self) -> None:
        """Begin a snapshot, and measure the free memory unless a limit was given."""
        self._begun = True
        self._measure()

    def _measure(self) -> None:
        if self._pages is None and not self._closed:
            try:
                self._pages = Pages(min(self._limit, memory()) if self._limit else memory() // _SHARE)
            except OSError:  # the system refuses the block: there are no copies, and threads that change a part wait
                return
            self._holes = [(0, self._pages.raw.size)]
        if self._pages is not None:
            free = free_memory(swap=False)
            most = self._limit or (memory() // 2 if free is None else free) // _SHARE
            self._end = min(most, self._pages.raw.size)

    def take(self, size: int) -> Allocation | None:
        """Return memory for a copy of `size` bytes; None if it is not available now."""
        for index, (start, stop) in enumerate(self._holes):
            if start + size > self._end:
                return None
            if start + size <= stop and self._pages is not None:
                self._holes[index : index + 1] = [(start + size, stop)] if start + size < stop else []
                self._used = max(self._used, start + size)
                self.taken += size
                return Allocation(start, self._pages.raw[start : start + size])
        return None

    def holds(self, size: int) -> bool:
        """Return True if copies of `size` bytes in total would fit now, in addition to the present copies."""
        with self.changed:
            self.begin()
            return self._pages is not None and self.taken + size <= self._end

    def give_back(self, part: Allocation) -> None:
        """Release the memory of a copy."""
        start, stop = part.start, part.start + part.raw.size
        index = next((i for i, hole in enumerate(self._holes) if hole[0] >= stop), len(self._holes))
        if index < len(self._holes) and self._holes[index][0] == stop:
            stop = self._holes.pop(index)[1]
        if index and self._holes[index - 1][1] == start:
            index -= 1
            start = self._holes.pop(index)[0]
        self._holes.insert(index, (start, stop))
        self.taken -= part.raw.size
        self.changed.notify_all()

    def rest(self) -> None:
        """End a snapshot. If no copy is in use any more, the system may reclaim the pages that copies have used."""
        if not self.taken and self._pages is not None:
            self._pages.release(0, self._used)
            self._used = 0
            if self._closed:
                self._pages = None
