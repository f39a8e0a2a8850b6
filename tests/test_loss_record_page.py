"""Pages generated from the record of losses agree with the record."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def test_pages_are_those_of_the_record() -> None:
    command = [sys.executable, "scripts/loss_record_page.py", "--check"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr


def _script() -> Any:
    spec = importlib.util.spec_from_file_location("loss_record_page", ROOT / "scripts" / "loss_record_page.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_range_from_seed_to_seed_is_of_runs_of_one_rate_of_language_models() -> None:
    def entry(cell: str, seed: int, lr: float, loss: float) -> dict[str, Any]:
        return {"cell": cell, "run": "topk", "seed": seed, "lr": lr, "loss": loss, "top1": 0.5}

    lstm, lenet = "lstm/adamw/1400", "lenet/sgd/400"
    entries = [entry(lstm, 1, 0.1, 2.0), entry(lstm, 2, 0.1, 2.2), entry(lstm, 3, 0.1, 2.1), entry(lstm, 1, 0.3, 9.0)]
    entries += [entry(lenet, 1, 0.1, 0.5), entry(lenet, 2, 0.1, 0.6)]
    rows = [line for line in _script().scatter(entries) if "`" in line]
    assert rows == ["| lstm, adamw, 1,400 steps | `--scheme topk` | 3 | 2.000 to 2.200 | 10.0 % |"]
