"""The folder that `psnode launch` creates for the ranks of its host, and removes when the job ends for any reason."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

VARIABLE = "PSNODE_JOB_END"  # names a file in the folder
ASKED = "asked"  # file in the folder: the number of the signal that asked the launcher to stop


def job_folder() -> Path | None:
    """Return the folder that `psnode launch` has created, or None in a process that no launcher on this host has started."""
    name = os.environ.get(VARIABLE)
    found = Path(name).parent if name else None
    return found if found is not None and found.is_dir() else None


def asked_signal(name: str) -> str:
    """Return the name of the signal that requested the stop.

    `name`: the signal that has arrived at a rank of this job, on any host. If the launcher gets a signal, it sends USR1 to
    all ranks and notes its own signal in the folder on its host. If `name` is USR1 and this note exists on this host, the
    noted signal is returned, otherwise `name`.
    """
    if name == signal.SIGUSR1.name and (folder := job_folder()) is not None:
        with contextlib.suppress(OSError, ValueError):
            return signal.Signals(int((folder / ASKED).read_text(encoding="utf-8"))).name
    return name
