"""Hardware and date of a measurement, which every result names."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from pathlib import Path

from psnode.config.cores import usable_cores

_USUAL_CACHE = 32 << 20


def hardware() -> dict[str, str | int]:
    """Return the facts of this machine by name.

    These are `date` (UTC), `cpu`, its `vectors`, usable `cores`, `cache` (bytes of the last level), `system` and `python`.
    """
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _cpu(),
        "vectors": _vectors(),
        "cores": usable_cores(),
        "cache": last_level_cache(),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def _cpu() -> str:
    """Return the processor's name, with family and model numbers if known, since different processors may share a name."""
    told = _told()
    name = told.get("model name") or platform.processor() or platform.machine()
    return f"{name} (family {told['cpu family']}, model {told['model']})" if {"cpu family", "model"} <= told.keys() else name


def _vectors() -> str:
    """Return the name of the widest vector extension that kernels use."""
    told = _told()
    flags = set(f"{told.get('flags', '')} {told.get('Features', '')}".split())
    for flag, name in (("avx512_vbmi2", "AVX-512 (VBMI2)"), ("avx512bw", "AVX-512"), ("avx2", "AVX2"), ("asimd", "NEON")):
        if flag in flags:
            return name
    return platform.machine()


def _told() -> dict[str, str]:
    """Return the fields of the first core in /proc/cpuinfo; empty if the file cannot be read."""
    try:
        lines = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def last_level_cache() -> int:
    """Return the bytes of the largest cache of the first core, or 32 MiB if the system does not state it."""
    found = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    try:
        return max(int(path.read_text().strip().removesuffix("K")) * 1024 for path in found)
    except (OSError, ValueError):  # no cache is listed, or its size is in another unit
        return _USUAL_CACHE
