"""Attack: `latest`, the pointer to the newest checkpoint, is a sparse file of a terabyte."""

from __future__ import annotations

import os
from pathlib import Path

TOLD = "it is larger than"
EVALUATED = (0, [7])  # an evaluation uses the existing checkpoint


def attack(run: Path) -> None:
    os.truncate(run / "checkpoints/latest", 1 << 40)
