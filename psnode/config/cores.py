"""Processor cores of this host, and a thread's share of them."""

from __future__ import annotations

import hashlib
import os
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from psnode.config.quotas import quota

_MOST = 1024  # larger thread counts are ignored
_BOOT = "proc/sys/kernel/random/boot_id"
_BACK = 10  # levels of niceness: ten levels lower a thread's share of the processor to a tenth


def usable_cores(root: Path = Path("/")) -> int:
    """Return the number of cores that this process may use.

    This is the number of cores on which it may be scheduled, but at most its quota, rounded down. The result is at least 1.
    `root`: see psnode.config.quotas.
    """
    scheduled = len(_scheduled())
    granted = quota(root)
    return scheduled if granted is None else max(1, min(scheduled, int(granted)))


def pool(root: Path = Path("/")) -> str:
    """Return a name for the cores that this process may use.

    As far as the system tells, processes with equal names share their cores. Emulated hosts share the cores of their machine.
    Containers share cores unless one of them has a quota that is smaller than their number of cores. Processes bound to
    different cores do not share them.
    """
    parts = [_line(root / _BOOT) or socket.gethostname(), *map(str, _scheduled())]
    granted = quota(root)
    if granted is not None and granted < len(_scheduled()):
        parts.append(_line(root / "proc/self/cgroup"))
        with suppress(OSError):  # inside containers the path of every control group is /
            parts.append(os.readlink(root / "proc/self/ns/cgroup"))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _line(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(encoding="utf-8").strip()
    return ""


def _scheduled() -> list[int]:
    """Return the indices of the cores on which this process may be scheduled."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def asked_threads(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return the thread count in OMP_NUM_THREADS, or None if the variable holds no number. In a list, the first count applies."""
    first = environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(first) if first.isdecimal() and 0 < int(first) <= _MOST else None


def stand_back() -> None:
    """Lower the priority of this thread if the system allows it, so that it mostly runs on cores that other threads leave
    idle."""
    with suppress(OSError, AttributeError):
        level = os.getpriority(os.PRIO_PROCESS, os.getpid()) + _BACK
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), level)
