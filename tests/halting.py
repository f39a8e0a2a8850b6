"""LeNet on digits, with training data that halt: batch `halt` and later ones wait until the file `gate` exists.

A job that a test kills or stops gets exactly as far as this batch, however fast it runs: `--task tests/halting.py --task-option
halt=18 --task-option gate=FILE`. Each process counts the different batches that it has drawn, so a batch drawn twice (as the
first ones are, for the inspection at the start) counts once.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from psnode.task import Batch
from psnode.tasks.classification import Classification

FILE = Path(__file__).resolve()


class _Halting:
    def __init__(self, data: Any, halt: int, gate: Path) -> None:
        self._data, self._halt, self._gate, self._drawn = data, halt, gate, set[bytes]()

    def __len__(self) -> int:
        return len(self._data)

    def batch(self, indices: Any, rng: np.random.Generator | None) -> Batch:
        self._drawn.add(indices.tobytes())
        while len(self._drawn) >= self._halt and not self._gate.exists():
            time.sleep(0.01)
        drawn: Batch = self._data.batch(indices, rng)
        return drawn


class Digits(Classification):
    """LeNet on digits, whose training data halt. Options: `halt`, the number of the first batch that waits, counted from 1;
    `gate`, the path of the file.
    """

    def __init__(self, options: Mapping[str, str] | None = None) -> None:
        super().__init__(network="LeNet", dataset="digits", seed=1)
        self._halt = dict(options or {})

    def train_data(self) -> Any:
        return _Halting(super().train_data(), int(self._halt["halt"]), Path(self._halt["gate"]))


def flags(halt: int, gate: Path) -> list[str]:
    """Return the flags of the command line for this task."""
    return ["--task", f"{FILE}:Digits", "--task-option", f"halt={halt}", "--task-option", f"gate={gate}"]


def settings(halt: int, gate: Path) -> dict[str, Any]:
    """Return the settings of a Config for this task."""
    return {"task": f"{FILE}:Digits", "task_option": (f"halt={halt}", f"gate={gate}")}
