"""Quotas of processor time that control groups give this process, in cores, as set by containers, batch systems and systemd."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath


def quota(root: Path = Path("/")) -> float | None:
    """Return the smallest quota of this process's control group and its ancestors, in cores; None if there is no quota.

    Both versions of control groups are read. `root`: the directory that contains /proc and the mounts of control groups.
    """
    grants = [grant for folder in _groups(root) for grant in (_second(folder), _first(folder)) if grant is not None]
    return min(grants, default=None)


def _groups(root: Path) -> Iterator[Path]:
    """Yield the directories of this process's control group and its ancestors, up to each mount of the cpu controller."""
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
    """Return the control group `path` relative to `mounted`, the directory of the group hierarchy that a mount shows.

    If `path` is not below `mounted`, as happens in containers, return the empty path, which stands for `mounted` itself.
    """
    with suppress(ValueError):
        return PurePosixPath(path).relative_to(mounted)
    return PurePosixPath()


def _second(folder: Path) -> float | None:
    """Return the quota of a control group of version 2; None if there is no quota.

    The group's file cpu.max holds "QUOTA PERIOD" or "max PERIOD".
    """
    with suppress(OSError, ValueError):
        granted, period = (folder / "cpu.max").read_text().split()
        return _cores(granted, period)
    return None


def _first(folder: Path) -> float | None:
    """Return the quota of a control group of version 1; None if there is no quota, for which the group's file holds -1."""
    with suppress(OSError, ValueError):
        return _cores((folder / "cpu.cfs_quota_us").read_text(), (folder / "cpu.cfs_period_us").read_text())
    return None


def _cores(granted: str, period: str) -> float | None:
    return int(granted) / int(period) if int(granted) > 0 and int(period) > 0 else None
