"""Memory in pages of its own, which occupy physical memory only after they are written to.

The pages are huge pages if the system has them.

The system clears a huge page in one step, instead of 512 small pages one by one. The mapping is private, because the pages of a
shared mapping, the default of mmap, are small on most systems. The mapping reserves no memory (MAP_NORESERVE). Otherwise a
system that limits reservations would refuse to fork a process that has reserved more than the physical memory.
"""

from __future__ import annotations

import mmap
import platform

import numpy as np

from psnode.codecs.arrays import Bytes, Floats

# MAP_NORESERVE, for which Python's mmap has no name
_NO_PROMISE = 0x4000 if platform.machine() in ("x86_64", "aarch64") else 0


class Pages:
    """A private mapping of `size` > 0 bytes: the array `raw`, initially zero. Deleting the object frees the memory.

    Raises OSError if the system has no address space for the mapping or refuses it.
    """

    def __init__(self, size: int) -> None:
        self._memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_PROMISE)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        self.raw: Bytes = np.frombuffer(self._memory, np.uint8)

    def touch(self, start: int, stop: int) -> None:
        """Allocate the pages that hold bytes `start` to `stop`. The contents of these bytes are lost."""
        self.raw[start : stop : mmap.PAGESIZE] = 0

    def release(self, start: int, stop: int) -> None:
        """Allow the system to take back the pages that hold bytes `start` to `stop` when it needs memory.

        Their contents may be lost.

        `start` must be a multiple of the page size.
        """
        if start < stop and hasattr(mmap, "MADV_FREE"):
            self._memory.madvise(mmap.MADV_FREE, start, stop - start)


def untouched(size: int) -> Floats:
    """Return `size` float32 zeros in pages of their own, which occupy memory only after they are written to.

    numpy and torch instead may reuse memory that the process has freed before. They must then write all the zeros immediately.
    """
    return Pages(4 * size).raw.view(np.float32) if size else np.zeros(0, np.float32)
