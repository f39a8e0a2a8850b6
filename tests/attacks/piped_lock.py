"""Attack: the lock file is a pipe without a reader; opening it would wait for ever."""

from __future__ import annotations

import os
from pathlib import Path

TOLD = "not a regular file"
EVALUATED = (0, [7])  # an evaluation takes no lock


def attack(run: Path) -> None:
    (run / ".lock").unlink(missing_ok=True)
    os.mkfifo(run / ".lock")
