"""The lock of a run's directory, which keeps out other jobs."""

from __future__ import annotations

import errno
import fcntl
import time
from pathlib import Path

from filelock import FileLock, Timeout

from psnode.config.files import open_plain
from psnode.errors import ConfigurationError

LOCK = ".lock"  # file in the directory
_DYING = 5.0  # seconds that a killed job may take to release the lock
_POLL = 0.1  # seconds between two attempts to acquire a held lock


def locked(path: Path) -> FileLock:
    """Acquire and return the lock of the directory `path`. Raises ConfigurationError if another process holds it.

    The operating system releases a lock when the process that holds it ends. A killed process may take a moment to end, so
    this function waits some seconds for the lock. Soft locks are not used, since the file that a killed process leaves would
    keep out the next job.
    """
    lock = FileLock(path / LOCK, timeout=_DYING, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        raise _held(path) from None
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):  # the file system has no locks
            raise
    return lock


def refuse_if_held(path: Path) -> None:
    """Raise ConfigurationError if another job holds the lock of the directory `path`, as `locked` does, but acquire no lock.

    A launcher calls this before it starts the ranks, of which rank 0 acquires the lock itself.
    """
    end = time.monotonic() + _DYING
    while at_work(path):
        if time.monotonic() >= end:
            raise _held(path)
        time.sleep(_POLL)


def _held(path: Path) -> ConfigurationError:
    return ConfigurationError(f"another job is at work in {path}: wait for its end or choose another --train-dir")


def at_work(path: Path) -> bool:
    """Return True if a job holds the lock of the run in `path`. The lock file is neither created nor written."""
    try:
        with open_plain(path / LOCK) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # there is no lock file, or the file system has no locks
        return False
    return False
