"""Attack: the file of the model is a link to an endless device."""

from __future__ import annotations

from pathlib import Path

from tests.attacks.attack import MODEL, STEP

TOLD = f"lacks {MODEL}"


def attack(run: Path) -> None:
    (run / STEP / MODEL).unlink()
    (run / STEP / MODEL).symlink_to("/dev/zero")
