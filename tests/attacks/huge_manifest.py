"""Attack: the manifest is larger than any manifest that psnode writes."""

from __future__ import annotations

import os
from pathlib import Path

from tests.attacks.attack import STEP

TOLD = "it is larger than"


def attack(run: Path) -> None:
    os.truncate(run / STEP / "manifest.json", 1 << 40)
