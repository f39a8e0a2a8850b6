"""Memory for copies, of which a rank has one piece: taken in parts, at the lowest places first, and kept warm from use to use."""

from __future__ import annotations

import threading
from typing import NamedTuple

from psnode.codecs.arrays import Bytes
from psnode.codecs.pages import Pages
from psnode.config.memory import free_memory, memory

_SHARE = 4  # of the memory that is free
_CHUNK = 1 << 23  # bytes that are made ready at a time, while nobody can take any


class Part(NamedTuple):
    """`raw`: room for a copy, which begins at byte `start` of all."""

    start: int
    raw: Bytes


class Room:
    """Memory for the copies of a rank's snapshots: at most `limit` bytes at a time; 0: a quarter of what is free at `begin`.

    A system takes longer to clear new pages than a copy takes, so that those of earlier snapshots are used again, but for what it
    has taken away meanwhile. `begin` and all below is called inside of `changed`.
    """

    def __init__(self, limit: int) -> None:
        self.changed = threading.Condition()
        self._limit = limit
        self._pages: Pages | None = None
        self._end = 0  # of what may be taken
        self._used = 0  # bytes, from the first one, that some copy has had since they were let go of
        self._holes: list[tuple[int, int]] = []  # begin and end, ascending, never side by side
        self._begun = self._closed = False
        self.taken = 0  # bytes

    def prepare(self, size: int) -> None:
        """Make ready what a first snapshot of `size` bytes will take, unless that has come."""
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
        """Nothing more is to be made ready or begun; what is taken stays until it is given back."""
        with self.changed:
            self._begun = self._closed = True
            self.rest()

    def begin(self) -> None:
        """A snapshot is about to be taken: see how much is free, where no limit was given."""
        self._begun = True
        self._measure()

    def _measure(self) -> None:
        if self._pages is None and not self._closed:
            try:
                self._pages = Pages(min(self._limit, memory()) if self._limit else memory() // _SHARE)
            except OSError:  # the system promises no more than it has: whoever changes something waits
                return
            self._holes = [(0, self._pages.raw.size)]
        if self._pages is not None:
            free = free_memory(swap=False)
            most = self._limit or (memory() // 2 if free is None else free) // _SHARE
            self._end = min(most, self._pages.raw.size)

    def take(self, size: int) -> Part | None:
        """Room for a copy of `size` bytes; None if there is none now."""
        for index, (start, stop) in enumerate(self._holes):
            if start + size > self._end:
                return None
            if start + size <= stop and self._pages is not None:
                self._holes[index : index + 1] = [(start + size, stop)] if start + size < stop else []
                self._used = max(self._used, start + size)
                self.taken += size
                return Part(start, self._pages.raw[start : start + size])
        return None

    def holds(self, size: int) -> bool:
        """True if copies of `size` bytes in all would have room now, beside those that are there."""
        with self.changed:
            self.begin()
            return self._pages is not None and self.taken + size <= self._end

    def give_back(self, part: Part) -> None:
        """The copy is not needed any more."""
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
        """A snapshot is over: if there is no other, what it has used is the system's if that needs memory."""
        if not self.taken and self._pages is not None:
            self._pages.release(0, self._used)
            self._used = 0
            if self._closed:
                self._pages = None
