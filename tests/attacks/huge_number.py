"""Attack: a number in config.json is larger than any float."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.attacks.attack import edit

TOLD = "cannot be used"


def attack(run: Path) -> None:
    def change(content: dict[str, Any]) -> None:
        content["config"]["seed"] = 10**400

    edit(run / "config.json", change)
