"""Measured costs of schemes. scripts/loss_record.py trains with each scheme and with dense, and writes loss_record.json.

A cell is a combination MODEL/OPTIMIZER/STEPS. The cost of a scheme in a cell is its difference from dense with the same
seed. It is measured at the learning rate that was best for the first seed. Language models are compared by their loss. Image
models are compared by their accuracy, since their loss is near 0.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from psnode.config.train_settings import WITH_BETAS

_FILE = Path(__file__).with_name("loss_record.json")
BY_LOSS = ("gpt", "lstm", "lora")  # beginnings of the names of language models
NOTABLE = {True: 2.0, False: 0.6}  # percent of the loss if models are compared by loss (True), otherwise points of accuracy
Entry = Mapping[str, Any]
Coded = tuple[str, str, str, float]


@dataclass(frozen=True)
class LossCost:
    """Cost of a scheme in a cell.

    * mean: percent of the loss of dense, or points of accuracy below dense
    * error: standard error of `mean` over `seeds` seeds; None for a single seed
    * ratio: bytes of float32 over the scheme's bytes, in both directions together
    * coded: codec, feedback, downlink and its lead
    """

    cell: str
    run: str
    coded: Coded
    mean: float
    error: float | None
    ratio: float
    seeds: int
    lr: float

    @property
    def model(self) -> str:
        return self.cell.split("/")[0]

    @property
    def steps(self) -> int:
        return int(self.cell.split("/")[2])

    @property
    def of_adam(self) -> bool:
        """True if the optimizer is Adam or one of its variants."""
        return self.cell.split("/")[1] in WITH_BETAS

    @property
    def by_loss(self) -> bool:
        return self.model.startswith(BY_LOSS)

    @property
    def is_notable(self) -> bool:
        """True if the cost is above the limit NOTABLE and above twice its standard error."""
        return self.mean > max(NOTABLE[self.by_loss], 2 * (self.error or 0))

    def __str__(self) -> str:
        unit = "% of the loss" if self.by_loss else "points of accuracy"
        return f"{self.mean:.1f} {unit} of {self.model} after {self.steps:,} steps"


def costs(entries: Iterable[Entry]) -> list[LossCost]:
    """Return the costs of every scheme in every cell, ordered by cell.

    In a cell dense comes first, then the schemes follow in descending order of bytes.
    """
    by_run: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        by_run.setdefault((entry["cell"], entry["run"]), []).append(entry)
    found = []
    for (cell, run), group in by_run.items():
        dense = {entry["seed"]: entry for entry in _at_the_best_rate(by_run.get((cell, "dense"), []))}
        pairs = [(entry, dense[entry["seed"]]) for entry in _at_the_best_rate(group) if entry["seed"] in dense]
        if pairs:
            found.append(_cost(cell, run, pairs))
    return sorted(found, key=lambda cost: (cost.cell, cost.run != "dense", cost.ratio))


def _at_the_best_rate(group: Sequence[Entry]) -> list[Entry]:
    """Return the runs of a scheme at its best learning rate: the rate with the least loss among the runs with the first seed."""
    first = min((entry["seed"] for entry in group), default=0)
    tried = [entry for entry in group if entry["seed"] == first]
    best = min(tried, key=lambda entry: float(entry["loss"]))["lr"] if tried else None
    return [entry for entry in group if entry["lr"] == best]


def _cost(cell: str, run: str, pairs: Sequence[tuple[Entry, Entry]]) -> LossCost:
    entry = pairs[0][0]
    by_loss = cell.startswith(BY_LOSS)
    differences = [
        100 * (own["loss"] / dense["loss"] - 1) if by_loss else 100 * (dense["top1"] - own["top1"]) for own, dense in pairs
    ]
    error = statistics.stdev(differences) / math.sqrt(len(pairs)) if len(pairs) > 1 else None
    coded = (entry["codec"], entry["feedback"], entry["downlink"], entry["downlink_lead"])
    ratio = statistics.fmean(own["ratio"] for own, _ in pairs)
    return LossCost(cell, run, coded, statistics.fmean(differences), error, ratio, len(pairs), entry["lr"])


@cache
def measured() -> tuple[LossCost, ...]:
    """Return the costs of all schemes in loss_record.json."""
    return tuple(costs(json.loads(_FILE.read_bytes())))


def costs_of(coded: Coded, optimizer: str) -> list[LossCost]:
    """Return the costs of a coding under optimizers of the same kind as `optimizer`, the highest cost first.

    `coded`: codec, feedback, downlink and its lead. There are two kinds of optimizers: Adam with its relatives, and SGD. For
    any other optimizer the result is empty.
    """
    of_adam = optimizer in WITH_BETAS
    if not of_adam and optimizer != "sgd":
        return []
    found = [cost for cost in measured() if cost.coded == coded and cost.of_adam == of_adam]
    return sorted(found, key=lambda cost: -cost.mean / NOTABLE[cost.by_loss])
