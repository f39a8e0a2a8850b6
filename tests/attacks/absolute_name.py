"""Attack: the manifest lists a device by its absolute path, so that a reader would never reach the end."""

from __future__ import annotations

from pathlib import Path

from tests.attacks.attack import rename_entry

TOLD = "not a plain path inside the checkpoint"


def attack(run: Path) -> None:
    rename_entry(run, "/dev/zero")
