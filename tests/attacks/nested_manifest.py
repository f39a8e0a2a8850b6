"""Attack: the manifest is JSON that is nested more deeply than the parser can follow."""

from __future__ import annotations

from pathlib import Path

from tests.attacks.attack import STEP, nested

TOLD = "nested too deeply"


def attack(run: Path) -> None:
    (run / STEP / "manifest.json").write_text(nested(200_000))
