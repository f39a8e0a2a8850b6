"""Attack: the manifest lists an endless device by its absolute path; a reader would never reach its end."""

from __future__ import annotations

from pathlib import Path

from tests.attacks.attack import rename_entry

TOLD = "not a plain path inside the checkpoint"


def attack(run: Path) -> None:
    rename_entry(run, "/dev/zero")
