"""Evaluations of a run: the lines of evaluations.jsonl, which the evaluator and sessions write, and the score that ranks them."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from psnode.config.plain_json import to_json
from psnode.errors import CheckpointError
from psnode.records.metrics import EVALUATIONS, read_records

_FIGURES = ("top1", "loss")  # keys in the record of an evaluation


@dataclass(frozen=True)
class Evaluation:
    """One line of evaluations.jsonl. Loss and metrics are means over `examples`; top1 and top5 are fractions, not per cent.

    A session's `examples` and `seconds` are None if its program does not state them; earlier versions wrote 0. A loss that is not
    finite is written as null.
    """

    step: int
    loss: float
    top1: float | None
    top5: float | None
    examples: int | None
    seconds: float | None
    metrics: dict[str, float]
    model: str | None = None  # xxh3_128 of the checkpoint's model file

    def __str__(self) -> str:
        """Return a line: step, loss, accuracies in per cent, other metrics, and the number of examples and seconds if known."""
        accuracy = "".join(
            f"  {name} {100 * value:.2f} %" for name, value in (("top1", self.top1), ("top5", self.top5)) if value is not None
        )
        extra = "".join(f"  {name} {value:.4f}" for name, value in self.metrics.items() if name not in ("top1", "top5"))
        time = f" in {self.seconds:.1f} s" if self.seconds else ""
        effort = f"  ({self.examples} examples{time})" if self.examples else ""
        return f"step {self.step}: loss {self.loss:.4f}{accuracy}{extra}{effort}"


def append(path: Path, result: Evaluation) -> None:
    """Append a line to the evaluations in `path`, and flush it to disk. Raises CheckpointError if it cannot be written."""
    try:
        with path.open("ab", buffering=0) as file:
            file.write(to_json(asdict(result)).encode() + b"\n")
            os.fsync(file.fileno())
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error.strerror}") from error


def score(record: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return the score of an evaluation; None if its loss is not a finite number. A better evaluation has a higher score.

    Evaluations are ranked by accuracy (top1). Evaluations without accuracy are ranked by their loss, below those with
    accuracy.
    """
    accuracy, loss = (value if isinstance(value, float) and math.isfinite(value) else None for value in map(record.get, _FIGURES))
    if loss is None:
        return None
    return (-math.inf, -loss) if accuracy is None else (accuracy, 0.0)


class Best:
    """The best score among the evaluations of the run in `train_dir`, which include those recorded before this start."""

    def __init__(self, train_dir: Path) -> None:
        found = (score(record) for record in read_records(train_dir / EVALUATIONS))
        self._best = max((each for each in found if each is not None), default=None)

    def take(self, result: Evaluation) -> bool:
        """Include `result`, and return True if no earlier evaluation is better."""
        found = score(asdict(result))
        if found is None or (self._best is not None and found < self._best):
            return False
        self._best = found
        return True
