"""Memory of this host."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")


def memory() -> int:
    """The bytes of memory that this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def free_memory(*, swap: bool = True) -> int | None:
    """Bytes that programs on this host can still take, within this process's control group; None if not told."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        free = 1024 * sum(int(lines[name].split()[0]) for name in ("MemAvailable", *(["SwapFree"] if swap else [])))
    except (OSError, KeyError, ValueError):
        return None
    with contextlib.suppress(OSError, StopIteration):
        own = next(line for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
        left = memory_left(_GROUPS, own.removeprefix("0::").lstrip("/"))
        free = free if left is None else min(free, left)
    return max(0, free)


def memory_left(root: Path, group: str) -> int | None:
    """Bytes that a control group (version 2, below `root`) and those around it still allow; None if none of them has a limit.

    Pages of files count as used there, but are given up when memory is wanted, as /proc/meminfo's MemAvailable has it; those of
    shared memory are not.
    """
    found = []
    for place in (root / group, *(root / group).parents):
        if not place.is_relative_to(root):
            break
        with contextlib.suppress(OSError, KeyError, ValueError):  # no limit is the word max
            limit = int((place / "memory.max").read_text())
            held = dict(line.split() for line in (place / "memory.stat").read_text().splitlines())
            used = int((place / "memory.current").read_text()) - int(held["file"]) + int(held["shmem"])
            found.append(limit - used)
    return min(found, default=None)
