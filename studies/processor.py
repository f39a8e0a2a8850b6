"""Processor time of threads and of the whole machine, read from Linux's /proc."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from psnode.transport.mpi.environment import place

KINDS = ("user", "nice", "system", "idle", "waiting", "interrupts", "soft interrupts", "stolen")
_PROC = Path("/proc")


class Thread(NamedTuple):
    """A thread: its rank, the id of its process, its own id (`number`), and its name in the kernel."""

    rank: int
    process: int
    number: int
    name: str

    @property
    def is_main(self) -> bool:
        """True for the main thread of its process."""
        return self.number == self.process


def ranks(argument: str) -> dict[int, int]:
    """Return the rank of each process that has a rank and has `argument` in its command line, by process id."""
    found: dict[int, int] = {}
    for process in _PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has ended, or belongs to another user
            if argument.encode() in (process / "cmdline").read_bytes().split(b"\0"):
                rank = _rank((process / "environ").read_bytes())
                found |= {int(process.name): rank} if rank is not None else {}
    return found


def threads(ranks: Mapping[int, int]) -> dict[Thread, float]:
    """Return the milliseconds of processor time that each thread in the running processes of `ranks` has used so far."""
    found: dict[Thread, float] = {}
    for process, rank in ranks.items():
        with contextlib.suppress(OSError):
            for thread in (_PROC / str(process) / "task").iterdir():
                with contextlib.suppress(OSError):
                    nanoseconds = int((thread / "schedstat").read_text().split()[0])
                    name = (thread / "comm").read_text().strip()
                    found[Thread(rank, process, int(thread.name), name)] = nanoseconds / 1e6
    return found


def _rank(environ: bytes) -> int | None:
    """Return the rank in a process's environment: an MPI launcher's variable, or RANK.

    None for a process without rank, such as mpirun.
    """
    variables = dict(word.decode(errors="replace").partition("=")[::2] for word in environ.split(b"\0"))
    found = place(variables)
    if found is not None:
        return found.rank
    return int(variables["RANK"]) if variables.get("RANK", "").isdecimal() else None


def machine() -> dict[str, float]:
    """Return the milliseconds that all processors together have spent since the machine's start, by kind (KINDS)."""
    words = (_PROC / "stat").read_text().split("\n", 1)[0].split()
    tick = 1e3 / os.sysconf("SC_CLK_TCK")
    return {kind: tick * int(word) for kind, word in zip(KINDS, words[1:], strict=False)}


def between(before: Mapping[Thread, float], after: Mapping[Thread, float]) -> dict[Thread, float]:
    """Return the milliseconds of each thread between two results of `threads`.

    A thread keeps its identity if its name changes.
    """
    known = {thread[:3]: milliseconds for thread, milliseconds in before.items()}
    return {thread: milliseconds - known.get(thread[:3], 0.0) for thread, milliseconds in after.items()}
