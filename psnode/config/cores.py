"""Processor cores of this host, and a thread's share of them."""

from __future__ import annotations

import os
import threading
from contextlib import suppress

_BACK = 10  # levels of niceness: a tenth of the share of a thread at level 0


def usable_cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def stand_back() -> None:
    """Leave the cores to other threads while those want them; this one has all that they leave, where the system can do so."""
    with suppress(OSError, AttributeError):
        level = os.getpriority(os.PRIO_PROCESS, os.getpid()) + _BACK
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), level)
