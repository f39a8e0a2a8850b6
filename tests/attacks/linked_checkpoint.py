"""Attack: the checkpoint is a link to a directory elsewhere."""

from __future__ import annotations

from pathlib import Path

from tests.attacks.attack import STEP

TOLD = "the directory is a link"
EVALUATED = (0, [])  # the run has not published the link


def attack(run: Path) -> None:
    (run / STEP).rename(run / "elsewhere")
    (run / STEP).symlink_to(run / "elsewhere")
