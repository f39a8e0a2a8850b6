"""Memory of its own pages, which take room once they are written to: large ones where the system has them.

The system clears a large page in one go where it is asked for 512 small ones. They are private: pages of shared memory, which
mmap gives unless told otherwise, are small on most systems whatever is asked for. And nothing is promised for pages not written
yet: a system that counts promises would refuse to fork a process with more of them than it has memory.
"""

from __future__ import annotations

import mmap
import platform

import numpy as np

from psnode.codecs.arrays import Bytes, Floats

# MAP_NORESERVE, which Python's mmap has no name for
_NO_PROMISE = 0x4000 if platform.machine() in ("x86_64", "aarch64") else 0


class Pages:
    """`raw`: `size` bytes (> 0), zeros at first, which go back to the system with this, whatever malloc keeps.

    OSError if the system has no addresses for them, or counts all memory as promised.
    """

    def __init__(self, size: int) -> None:
        self._memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_PROMISE)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        self.raw: Bytes = np.frombuffer(self._memory, np.uint8)

    def touch(self, start: int, stop: int) -> None:
        """Have pages for these bytes, whose contents are lost."""
        self.raw[start : stop : mmap.PAGESIZE] = 0

    def release(self, start: int, stop: int) -> None:
        """These bytes are not needed: the system may take their pages when it wants memory; else they stay warm.

        `start`: a multiple of the size of pages.
        """
        if start < stop and hasattr(mmap, "MADV_FREE"):
            self._memory.madvise(mmap.MADV_FREE, start, stop - start)


def untouched(size: int) -> Floats:
    """`size` zeros of float32 in pages of their own.

    Not numpy's or torch's zeros: from memory that the process has freed before these are written, all of them, at once.
    """
    return Pages(4 * size).raw.view(np.float32) if size else np.zeros(0, np.float32)
