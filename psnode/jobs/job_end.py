"""Marks by which rank 0 tells the launcher how its job ended: mpirun's own code is 0 when every rank was killed.

`psnode launch` names a file by a variable. Rank 0 writes there that a job has begun, with which code it has ended, and that the
process leaves by itself. Every end that is no kill is told by a command of psnode and by a program that `psnode launch` starts
(`watch`), a job or none. A rank 0 on another host leaves no file here. Beside that file the launcher leaves the signal that asked
it for a stop: mpirun hands on USR1 whatever that was.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
from pathlib import Path
from typing import NamedTuple

from psnode.config.launcher import VARIABLE, job_folder
from psnode.transport.mpi.environment import place

_ASKED = "asked"
_BEGUN, _ENDED, _LEFT = "begun", "ended", "left"


class Told(NamedTuple):
    """`begun`: a job has. `code`: that it has ended with; None: it has not ended. `left`: the process came to its own end."""

    begun: bool
    code: int | None
    left: bool


def watch() -> None:
    """Have the end of this process told, but for one that bypasses atexit."""
    atexit.unregister(_leave_as)
    atexit.register(_leave_as, os.getpid())


def begin() -> None:
    """A job begins in this process."""
    _tell(_BEGUN)
    watch()


def end(code: int) -> None:
    """The job has ended with `code`."""
    _tell(f"{_ENDED} {code}")


def leave() -> None:
    """The process ends by itself."""
    _tell(_LEFT)


def _leave_as(pid: int) -> None:
    if os.getpid() == pid:  # no fork of it
        leave()


def ask(file: Path, number: int) -> None:
    """The launcher, whose file is `file`, was asked to stop by signal `number`."""
    with contextlib.suppress(OSError):
        file.with_name(_ASKED).write_text(f"{number}\n", encoding="utf-8")


def asked(number: int) -> int:
    """The signal that asked the launcher of this process to stop, if that has handed on `number`; else `number`."""
    if number == signal.SIGUSR1 and (folder := job_folder()) is not None:
        with contextlib.suppress(OSError, ValueError):
            return int((folder / _ASKED).read_text(encoding="utf-8"))
    return number


def read(file: Path) -> Told:
    """The marks that rank 0 has left."""
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
    if name and here is not None and here.rank == 0:
        with contextlib.suppress(OSError), Path(name).open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
