"""Attack: metrics.jsonl is a link to an endless device; reading its first line would take all memory."""

from __future__ import annotations

from pathlib import Path

TOLD = "not a regular file"
EVALUATED = (0, [7])  # an evaluation needs no records


def attack(run: Path) -> None:
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").symlink_to("/dev/zero")
