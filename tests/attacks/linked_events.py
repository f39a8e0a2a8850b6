"""Attack: events.jsonl is a link to another file of the user, to which a resumed run would append."""

from __future__ import annotations

from pathlib import Path

TOLD = "not a regular file"
EVALUATED = (0, [7])  # an evaluation records no events


def attack(run: Path) -> None:
    (run / "events.jsonl").unlink(missing_ok=True)
    (run / "events.jsonl").symlink_to("../victim")
