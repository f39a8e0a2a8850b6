"""Attack: the manifest lists a file whose name contains control characters of a terminal."""

from __future__ import annotations

from pathlib import Path

from tests.attacks.attack import rename_entry

TOLD = "not a plain path inside the checkpoint"


def attack(run: Path) -> None:
    rename_entry(run, "\x1b]0;title\x07\x1b[2J.safetensors")
