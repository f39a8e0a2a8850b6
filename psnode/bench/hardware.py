"""What a measurement ran on, and when: every result names it."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from pathlib import Path


def hardware() -> dict[str, str | int]:
    """`date` (UTC, to the second), `cpu`, `cores` this process may use, `system`, `python`."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
