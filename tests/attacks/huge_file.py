"""Attack: the model is a sparse file of a terabyte, which would take an hour to hash."""

from __future__ import annotations

import os
from pathlib import Path

from tests.attacks.attack import MODEL, STEP

TOLD = "its manifest has"


def attack(run: Path) -> None:
    os.truncate(run / STEP / MODEL, 1 << 40)
