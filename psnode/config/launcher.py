"""Folder that `psnode launch` makes for the ranks of its host, and removes when the job is over, however it ends."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "PSNODE_JOB_END"  # a file in it


def job_folder() -> Path | None:
    """The folder; None of a process that no launcher of this host has started."""
    name = os.environ.get(VARIABLE)
    found = Path(name).parent if name else None
    return found if found is not None and found.is_dir() else None
