"""Attack: evaluations.jsonl is a link to another file of the user, to which an evaluator would append."""

from __future__ import annotations

from pathlib import Path

TOLD = "not a regular file"


def attack(run: Path) -> None:
    (run / "evaluations.jsonl").symlink_to("../victim")
