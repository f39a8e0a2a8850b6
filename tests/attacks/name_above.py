"""Attack: the manifest lists a file above the checkpoint's folder, with the right size and hash."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.attacks.attack import MODEL, STEP, rename_entry

TOLD = "not a plain path inside the checkpoint"


def attack(run: Path) -> None:
    shutil.copy(run / STEP / MODEL, run / MODEL)
    rename_entry(run, f"../../{MODEL}")
