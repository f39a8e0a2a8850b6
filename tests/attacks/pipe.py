"""Attack: the file of the model is a pipe without a writer; opening it would wait for ever."""

from __future__ import annotations

import os
from pathlib import Path

from tests.attacks.attack import MODEL, STEP

TOLD = "not a regular file"


def attack(run: Path) -> None:
    (run / STEP / MODEL).unlink()
    os.mkfifo(run / STEP / MODEL)
