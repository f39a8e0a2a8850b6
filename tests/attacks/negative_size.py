"""Attack: the manifest gives the model a negative size, which would make a reader read to the end of the file."""

from __future__ import annotations

from pathlib import Path

from tests.attacks.attack import MODEL, rename_entry

TOLD = "an entry of files is"


def attack(run: Path) -> None:
    rename_entry(run, MODEL, bytes=-1)
