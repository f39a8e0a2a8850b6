"""Marks in a file by which rank 0 informs the launcher of the end of its job.

The launcher needs them because mpirun's exit code is 0 if every rank was killed. `psnode launch` names the file in an
environment variable. Rank 0 writes three marks to it: that a job has begun, the code with which the job has ended, and that
the process exits normally. Every command of psnode, and every program started by `psnode launch`, reports a normal exit
(`watch`), even if it runs no job. If rank 0 runs on another host, the launcher finds no file on its own host. In a second
file next to the first, the launcher stores the signal that asked it to stop, because the ranks get USR1 instead of this signal.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
from pathlib import Path
from typing import NamedTuple

from psnode.config.job_folder import ASKED, VARIABLE
from psnode.plans.roles import MASTER
from psnode.transport.mpi.environment import place

_BEGUN, _ENDED, _LEFT = "begun", "ended", "left"
_BUFFERED = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)


class Told(NamedTuple):
    """The marks that rank 0 has written about its job.

    * begun: True if a job has begun
    * code: exit code of the job; None if it has not ended
    * left: True if the process exited normally
    """

    begun: bool
    code: int | None
    left: bool


def watch() -> None:
    """Register a function that reports this process's exit to the launcher, and makes the exit quicker.

    The function is registered with atexit. So it is not called if the process exits in a way that bypasses atexit.
    """
    atexit.unregister(_leave_as)
    atexit.register(_leave_as, os.getpid())


def begin() -> None:
    """Record that a job begins in this process."""
    _tell(_BEGUN)
    watch()


def end(code: int) -> None:
    """Record that the job has ended with `code`."""
    _tell(f"{_ENDED} {code}")


def leave() -> None:
    """Record that the process exits normally."""
    _tell(_LEFT)


def _leave_as(pid: int) -> None:
    if os.getpid() == pid:  # not in a fork of that process
        leave()
        _spare_the_last_collections()


def _spare_the_last_collections() -> None:
    """Exempt all objects from Python's cycle collector, so that the process exits quicker.

    The collector's last passes over the objects of torch and Numba would take a second. They would also flush and close files
    that are part of cycles, so buffered files are flushed here first.
    """
    for found in gc.get_objects():
        if type(found) in _BUFFERED:
            with contextlib.suppress(Exception, SystemExit):  # the stream is closed, or has no reader
                found.flush()
    gc.freeze()


def ask(file: Path, number: int) -> None:
    """Record that signal `number` asked the launcher to stop. `file`: the launcher's file for the marks of rank 0."""
    with contextlib.suppress(OSError):
        file.with_name(ASKED).write_text(f"{number}\n", encoding="utf-8")


def read(file: Path) -> Told:
    """Return the marks that rank 0 has left in `file`."""
    told = Told(False, None, False)
    with contextlib.suppress(OSError):
        for line in file.read_text(encoding="utf-8").splitlines():
            word, _, code = line.partition(" ")
            if word == _BEGUN:
                told = Told(True, None, False)
            elif word == _ENDED and code.isdecimal():
                told = told._replace(code=int(code))
            elif word == _LEFT:
                told = told._replace(left=True)
    return told


def _tell(line: str) -> None:
    here, name = place(), os.environ.get(VARIABLE)
    if name and here is not None and here.rank == MASTER:
        with contextlib.suppress(OSError), Path(name).open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
