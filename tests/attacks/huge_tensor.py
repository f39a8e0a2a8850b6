"""Attack: model and manifest agree on a sparse file of eight terabytes, which takes hours to hash and fits into no memory."""

from __future__ import annotations

import os
from pathlib import Path

from tests.attacks.attack import MODEL, STEP, rename_entry

TOLD = "memory"


def attack(run: Path) -> None:
    os.truncate(run / STEP / MODEL, 1 << 43)
    rename_entry(run, MODEL, bytes=1 << 43)
