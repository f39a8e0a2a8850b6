"""Shared memory, over which Open MPI's ranks of one host communicate. Containers have little of it by default."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

PLACE = Path("/dev/shm")
A_RANK = 1 << 24  # bytes that Open MPI 5 reserves for a rank: its btl_sm_segment_size


class SharedMemory(NamedTuple):
    """Bytes of the file system, and the free bytes of it."""

    size: int
    free: int

    def holds(self, ranks: int) -> bool:
        """Return True if it holds the reservations of this many ranks. A rank beyond that exits, or is killed later when it
        writes to its segment."""
        return self.free >= ranks * A_RANK


def room(place: Path = PLACE) -> SharedMemory | None:
    """Return the present size and free bytes; None if there is no such place and Open MPI uses another."""
    try:
        found = os.statvfs(place)
    except OSError:
        return None
    return SharedMemory(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)
