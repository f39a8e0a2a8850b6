"""The folder that `psnode launch` creates for the ranks of its host, and removes when the job ends, for whatever reason."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "PSNODE_JOB_END"  # names a file in the folder


def job_folder() -> Path | None:
    """Return the folder, or None in a process that no launcher on this host has started."""
    name = os.environ.get(VARIABLE)
    found = Path(name).parent if name else None
    return found if found is not None and found.is_dir() else None
