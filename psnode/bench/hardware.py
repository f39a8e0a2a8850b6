"""Hardware and date of a measurement: every result names them."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from pathlib import Path

from psnode.config.cores import usable_cores

_USUAL_CACHE = 32 << 20


def hardware() -> dict[str, str | int]:
    """`date` (UTC, to the second), `cpu` and its `vectors`, `cores` to use, `cache` (bytes, last level), `system`, `python`."""
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
    """Name, and the numbers that tell processors of one name apart."""
    told = _told()
    name = told.get("model name") or platform.processor() or platform.machine()
    return f"{name} (family {told['cpu family']}, model {told['model']})" if {"cpu family", "model"} <= told.keys() else name


def _vectors() -> str:
    """The widest vector extension that kernels use."""
    told = _told()
    flags = set(f"{told.get('flags', '')} {told.get('Features', '')}".split())
    for flag, name in (("avx512_vbmi2", "AVX-512 (VBMI2)"), ("avx512bw", "AVX-512"), ("avx2", "AVX2"), ("asimd", "NEON")):
        if flag in flags:
            return name
    return platform.machine()


def _told() -> dict[str, str]:
    """Fields that /proc/cpuinfo has of the first core; empty where there is none."""
    try:
        lines = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def last_level_cache() -> int:
    """Bytes of the largest cache that the first core sees, or 32 MiB where the system does not say."""
    found = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    try:
        return max(int(path.read_text().strip().removesuffix("K")) * 1024 for path in found)
    except (OSError, ValueError):  # there is none, or it is told in another unit
        return _USUAL_CACHE
