"""A temporary folder that is removed when its job ends, even if the launcher is killed.

This file is also the program that removes the folder. `swept()` starts it as `sweeping.py FOLDER`, in its own session, so
that signals to the launcher's group do not reach it. The program reads the id of the job's session from its input, which ends
when the launcher ends. Then it waits until no process of the job's session is left, and removes the folder if it still
exists.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

_POLL_SECONDS = 0.2
_PROC = Path("/proc")


@contextlib.contextmanager
def swept(prefix: str) -> Iterator[tuple[Path, Callable[[int], None]]]:
    """Create a temporary folder. Yields it, and a function to call with the session id of the job that uses the folder."""
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as folder:
        command = [sys.executable, "-I", "-S", __file__, folder]
        nowhere = subprocess.DEVNULL
        sweeper = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere, start_new_session=True, cwd="/"
        )
        assert sweeper.stdin is not None
        told = sweeper.stdin

        def tell(session: int) -> None:
            with contextlib.suppress(OSError):
                told.write(b"%d\n" % session)
                told.flush()

        try:
            yield Path(folder), tell
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(OSError):
                told.close()
            sweeper.wait()


def members(session: int) -> list[int]:
    """Return the ids of the processes of a session. Without /proc, return only the id of its first process."""
    if not _PROC.is_dir():
        return [session]
    found = []
    for entry in _PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.getsid(int(entry.name)) == session:
                found.append(int(entry.name))
    return found


def runs(pid: int) -> bool:
    """Return True if the process exists and has not ended."""
    with contextlib.suppress(OSError):
        os.kill(pid, 0)
        return not _PROC.is_dir() or (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    return False


def _sweep(folder: str) -> None:
    sessions = [int(line) for line in sys.stdin.buffer.read().split()]
    while os.path.isdir(folder) and any(runs(pid) for session in sessions for pid in members(session)):
        time.sleep(_POLL_SECONDS)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _sweep(sys.argv[1])
