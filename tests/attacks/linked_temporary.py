"""Attack: links to another file of the user have the temporary names of files that psnode writes and then renames."""

from __future__ import annotations

import os
from pathlib import Path

TOLD = "was altered"


def attack(run: Path) -> None:
    model = run / "checkpoints/step-00000007/model.safetensors"
    model.write_bytes(bytes(model.stat().st_size))
    for name in (".mark", "config.json", "machines.json", "metrics.jsonl", "summary.json", "evaluations.jsonl"):
        (run / f".{name}.{os.getpid()}").unlink(missing_ok=True)
        (run / f".{name}.{os.getpid()}").symlink_to("../victim")
