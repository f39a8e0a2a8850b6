"""Attack: a line of metrics.jsonl is nested more deeply than the parser can follow."""

from __future__ import annotations

from pathlib import Path

from tests.attacks.attack import nested

TOLD = "nested too deeply"
EVALUATED = (0, [7])  # an evaluation needs no records


def attack(run: Path) -> None:
    (run / "metrics.jsonl").write_text(nested(200_000) + "\n")
