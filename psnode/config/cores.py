"""Processor cores of this host, and a thread's share of them."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from psnode.config.quotas import quota

_MOST = 1024  # threads that are believed
_BACK = 10  # levels of niceness: a tenth of the share of a thread at level 0


def usable_cores(root: Path = Path("/")) -> int:
    """Number of cores that this process may use: those it may be scheduled on, and no more than its quota is whole ones of.

    `root`: as of psnode.config.quotas.
    """
    scheduled = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    granted = quota(root)
    return scheduled if granted is None else max(1, min(scheduled, int(granted)))


def asked_threads(environ: Mapping[str, str] = os.environ) -> int | None:
    """The number in OMP_NUM_THREADS, the first where it lists one a level; None where it holds none."""
    first = environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(first) if first.isdecimal() and 0 < int(first) <= _MOST else None


def stand_back() -> None:
    """Leave the cores to other threads while those want them; this one has all that they leave, where the system can do so."""
    with suppress(OSError, AttributeError):
        level = os.getpriority(os.PRIO_PROCESS, os.getpid()) + _BACK
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), level)
