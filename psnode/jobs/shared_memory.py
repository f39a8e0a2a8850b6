"""Shared memory, through which the ranks of Open MPI on one host communicate. Containers have little of it by default."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

PLACE = Path("/dev/shm")
A_RANK = 1 << 24  # bytes that Open MPI 5 reserves for a rank: its btl_sm_segment_size


class SharedMemory(NamedTuple):
    """Size and free space, in bytes, of the file system in shared memory."""

    size: int
    free: int

    def holds(self, ranks: int) -> bool:
        """Return True if the free space suffices for the reservations of this many ranks.

        If it does not, further ranks exit at the start, or are killed later when they write to their segments.
        """
        return self.free >= ranks * A_RANK


def room(place: Path = PLACE) -> SharedMemory | None:
    """Return the present size and free space of `place`; None if it does not exist. Open MPI then uses another place."""
    try:
        found = os.statvfs(place)
    except OSError:
        return None
    return SharedMemory(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)
