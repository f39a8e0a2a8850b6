"""The memory of this host."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")


def memory() -> int:
    """Return the size of this machine's memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def free_memory(*, swap: bool = True) -> int | None:
    """Return the bytes of memory still available to this process, within its control group; None if unknown.

    If `swap` is True, free swap space is included.
    """
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
    """Return the bytes that a control group (version 2, below `root`) and its ancestors still allow; None if there is no limit.

    A group counts cached pages of files as used. The kernel frees such pages under pressure, so this function counts them as
    free, like MemAvailable of /proc/meminfo. Pages of shared memory count as used, since the kernel cannot free them.
    """
    found = []
    for place in (root / group, *(root / group).parents):
        if not place.is_relative_to(root):
            break
        with contextlib.suppress(OSError, KeyError, ValueError):  # the limit may be the word max
            limit = int((place / "memory.max").read_text())
            held = dict(line.split() for line in (place / "memory.stat").read_text().splitlines())
            used = int((place / "memory.current").read_text()) - int(held["file"]) + int(held["shmem"])
            found.append(limit - used)
    return min(found, default=None)
