"""Attack: config.json is nested more deeply than the parser can follow."""

from __future__ import annotations

from pathlib import Path

from tests.attacks.attack import nested

TOLD = "nested too deeply"


def attack(run: Path) -> None:
    (run / "config.json").write_text(nested(200_000))
