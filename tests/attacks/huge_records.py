"""Attack: metrics.jsonl is a sparse file of a terabyte without a newline."""

from __future__ import annotations

import os
from pathlib import Path

TOLD = "it is larger than"
EVALUATED = (0, [7])  # an evaluation needs no records


def attack(run: Path) -> None:
    (run / "metrics.jsonl").write_bytes(b"")
    os.truncate(run / "metrics.jsonl", 1 << 40)
