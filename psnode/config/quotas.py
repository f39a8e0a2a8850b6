"""The processor time that control groups grant this process, in cores: containers, pods, batch systems and systemd set it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath


def quota(root: Path = Path("/")) -> float | None:
    """The smallest grant of this process's control group and of those around it, of either version; None without any.

    `root`: the directory in which /proc and the mounts of control groups are found.
    """
    grants = [grant for folder in _groups(root) for grant in (_second(folder), _first(folder)) if grant is not None]
    return min(grants, default=None)


def _groups(root: Path) -> Iterator[Path]:
    """Directories of the group and all around it, up to each mount that has to do with the processor."""
    try:
        members = (root / "proc/self/cgroup").read_text().splitlines()
        mounts = (root / "proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return
    for line in mounts:
        before, _, after = line.partition(" - ")
        place, kind = before.split(" ")[3:5], after.split(" ")
        if len(place) < 2 or len(kind) < 3 or not (kind[0] == "cgroup2" or (kind[0] == "cgroup" and "cpu" in kind[2].split(","))):
            continue
        for member in members:
            _, controllers, path = member.split(":", 2)
            if (kind[0] == "cgroup2") == (controllers == "") and (controllers == "" or "cpu" in controllers.split(",")):
                inner = _below(path, place[0])
                mount = root / place[1].lstrip("/")
                yield from (mount / part for part in (inner, *inner.parents))


def _below(path: str, mounted: str) -> PurePosixPath:
    """`path` as seen from the directory `mounted` of its hierarchy; that one itself if it lies elsewhere, as in containers."""
    with suppress(ValueError):
        return PurePosixPath(path).relative_to(mounted)
    return PurePosixPath()


def _second(folder: Path) -> float | None:
    """Version 2: cpu.max holds "QUOTA PERIOD" or "max PERIOD"."""
    with suppress(OSError, ValueError):
        granted, period = (folder / "cpu.max").read_text().split()
        return _cores(granted, period)
    return None


def _first(folder: Path) -> float | None:
    """Version 1: a quota of -1 is none."""
    with suppress(OSError, ValueError):
        return _cores((folder / "cpu.cfs_quota_us").read_text(), (folder / "cpu.cfs_period_us").read_text())
    return None


def _cores(granted: str, period: str) -> float | None:
    return int(granted) / int(period) if int(granted) > 0 and int(period) > 0 else None
