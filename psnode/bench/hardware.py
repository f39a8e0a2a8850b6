"""Hardware and date of a measurement: every result names them."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from pathlib import Path

from psnode.config.cores import usable_cores

_USUAL_CACHE = 32 << 20


def hardware() -> dict[str, str | int]:
    """`date` (UTC, to the second), `cpu`, `cores` this process may use, `cache` (bytes, last level), `system`, `python`."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _cpu(),
        "cores": usable_cores(),
        "cache": last_level_cache(),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def last_level_cache() -> int:
    """Bytes of the largest cache that the first core sees, or 32 MiB where the system does not say."""
    found = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    try:
        return max(int(path.read_text().strip().removesuffix("K")) * 1024 for path in found)
    except (OSError, ValueError):  # there is none, or it is told in another unit
        return _USUAL_CACHE
