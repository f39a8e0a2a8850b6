"""Shared memory, through which the ranks of Open MPI on one host communicate. Containers have little of it by default."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

PLACE = Path("/dev/shm")
A_RANK = 1 << 24  # bytes that Open MPI 5 reserves for a rank: its btl_sm_segment_size


class SharedMemory(NamedTuple):
    """Size and free space, in bytes, of a file system that lies in shared memory."""

    size: int
    free: int

    def holds(self, ranks: int) -> bool:
        """Return True if the free space suffices for the memory that Open MPI reserves for `ranks` ranks.

        If it does not suffice, some ranks exit at the start, or are killed later when they write to their segments.
        """
        return self.free >= ranks * A_RANK


def room(place: Path = PLACE) -> SharedMemory | None:
    """Return the present size and free space of the file system at `place`; None if `place` does not exist.

    Without /dev/shm, Open MPI uses another place for its shared memory.
    """
    try:
        found = os.statvfs(place)
    except OSError:
        return None
    return SharedMemory(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)
