"""Processes and files of the jobs of scripts/signals.py. The processes of a job are found by a mark in their environment."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from running import send

MARK = "SIGNALS_MARK"
LEAVE_SECONDS = 30.0  # time within which an ended job must release its processes and files
_ALONE = re.compile(r"sm_segment\..*0000\.0$")  # of a program without mpirun; no job of these schedules is one


def marked(mark: str) -> dict[int, dict[str, str]]:
    """Return the environments of all processes whose environment contains `mark`, by process id."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
            if f"{MARK}={mark}" in words:
                found[int(entry.name)] = dict(word.split("=", 1) for word in words if "=" in word)
    return found


def parent(pid: int) -> int:
    """Return the id of the parent of process `pid`; 0 if the process is gone."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def ranks(mark: str) -> dict[int, int]:
    """Return the process id of each rank of the job with this mark. Processes that ranks have started do not count."""
    words = {pid: env["OMPI_COMM_WORLD_RANK"] for pid, env in marked(mark).items() if "OMPI_COMM_WORLD_RANK" in env}
    return {int(rank): pid for pid, rank in words.items() if parent(pid) not in words}


def imports(pid: int) -> bool:
    """Return True if process `pid` has loaded torch, which shows that the start of Python is over."""
    with contextlib.suppress(OSError):
        return "libtorch" in Path(f"/proc/{pid}/maps").read_text()
    return False


def left(mark: str, temporary: Path, shm: set[str]) -> tuple[list[str], list[str]]:
    """Return the processes and files that an ended job has left.

    Before, wait up to LEAVE_SECONDS until there are none. `shm`: names in /dev/shm before the job; files that a process has
    mapped belong to other jobs.
    """

    def look() -> tuple[list[str], list[str]]:
        processes = [_command(pid) for pid in marked(mark)]
        files = [str(path.relative_to(temporary)) for path in temporary.rglob("*") if not _of_torch(path)]
        return processes, files + [f"/dev/shm/{name}" for name in shm_files() - shm - _mapped() if not _ALONE.match(name)]

    wait(lambda: not any(look()), LEAVE_SECONDS)
    return look()


def _of_torch(path: Path) -> bool:
    """Return True if `path` is an empty directory named like a cache of torch's compiler."""
    return path.name.startswith("torchinductor_") and path.is_dir() and not any(path.iterdir())


def wait(what: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not what() and time.monotonic() < end:
        time.sleep(0.2)


def kill(pids: Any) -> None:
    for pid in pids:
        send(pid, signal.SIGKILL)


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return f"{pid} {Path(f'/proc/{pid}/cmdline').read_bytes()[:200]!r}"
    return str(pid)


def shm_files() -> set[str]:
    """Return the names of this user's files in /dev/shm."""
    found = set[str]()
    for entry in os.scandir("/dev/shm"):
        with contextlib.suppress(OSError):
            if entry.stat().st_uid == os.getuid():
                found.add(entry.name)
    return found


def _mapped() -> set[str]:
    """Return the names in /dev/shm that a process has mapped."""
    found = set[str]()
    for entry in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            found |= {line.rpartition("/dev/shm/")[2] for line in entry.read_text().splitlines() if "/dev/shm/" in line}
    return found
