"""Attack: evaluations.jsonl is a pipe without a writer; reading it would wait for ever."""

from __future__ import annotations

import os
from pathlib import Path

TOLD = "not a regular file"


def attack(run: Path) -> None:
    os.mkfifo(run / "evaluations.jsonl")
