"""The steps of a run as columns, with running totals, and reduced to few points for a curve."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from psnode.codecs.arrays import Float64s

AXES = ("steps", "seconds", "bytes")
MOST_POINTS = 160  # of a curve; values in between are shown as a band
_ABSENT = math.nan


class Curve(NamedTuple):
    """Points of a quantity: mean, minimum and maximum of each bucket of steps, at the last step of the bucket."""

    steps: Float64s
    mean: Float64s
    low: Float64s
    high: Float64s


@dataclass(frozen=True)
class Steps:
    """Quantities of the finished updates, in order, by a dotted name (`loss`, `seconds.encode`, `metrics.top1`); nan: unknown.

    `number`: the step of each. `totals`: by axis, the total when the step was finished.
    """

    number: Float64s = field(default_factory=lambda: np.zeros(0))
    columns: Mapping[str, Float64s] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.number.size

    def column(self, name: str) -> Float64s:
        """Return the quantity of every step, nan if it is unknown."""
        return self.columns.get(name, np.full(self.number.size, _ABSENT))

    def known(self, name: str) -> Float64s:
        """Return the quantity of the steps that have it."""
        values = self.column(name)
        return values[np.isfinite(values)]

    def sum(self, *names: str) -> float:
        """Return the sum of quantities over all steps."""
        return float(sum(np.sum(self.known(name)) for name in names))

    def totals(self, axis: str) -> Float64s:
        """Return the number of the step, or the seconds or bytes of the whole job up to the end of each."""
        if axis == "steps":
            return self.number
        names = ("seconds.step",) if axis == "seconds" else ("uplink_bytes", "downlink_bytes")
        found = np.zeros(self.number.size)
        for name in names:
            found += np.nan_to_num(self.column(name))
        return np.cumsum(found)

    def place(self, axis: str, step: Sequence[float] | Float64s) -> Float64s:
        """Return the run's place on `axis` when `step` was finished; between and beyond the recorded steps the nearest before."""
        wanted = np.asarray(step, np.float64)
        if axis == "steps" or not len(self):
            return wanted
        at = np.searchsorted(self.number, wanted, side="right")
        return np.concatenate([[0.0], self.totals(axis)])[at]

    def curve(self, name: str, most: int = MOST_POINTS) -> Curve:
        """Return the quantity in at most `most` buckets of about equal numbers of steps; steps without it are left out."""
        told = np.isfinite(self.column(name))
        number, values = self.number[told], self.column(name)[told]
        edges = np.unique(np.linspace(0, values.size, min(most, values.size) + 1).astype(np.int64)) if values.size else [0]
        parts = [values[a:b] for a, b in pairwise(edges)]
        last = [number[b - 1] for b in edges[1:]]
        return Curve(
            np.array(last),
            np.array([np.mean(part) for part in parts]),
            np.array([np.min(part) for part in parts]),
            np.array([np.max(part) for part in parts]),
        )


def columns_of(records: Iterable[Mapping[str, Any]]) -> Steps:
    """Return the columns of records of metrics.jsonl or evaluations.jsonl. Values that are not
    finite numbers count as unknown."""
    numbers: list[float] = []
    found: dict[str, list[float]] = {}
    for record in records:
        for name, value in _flat(record):
            column = found.setdefault(name, [])
            column.extend([_ABSENT] * (len(numbers) - len(column)))
            column.append(value)
        numbers.append(float(record["step"]))
    columns = {name: np.array(column + [_ABSENT] * (len(numbers) - len(column))) for name, column in found.items()}
    return Steps(np.array(numbers), columns)


def _flat(record: Mapping[str, Any]) -> Iterable[tuple[str, float]]:
    for name, value in record.items():
        if name == "step":
            continue
        inner = value.items() if isinstance(value, dict) else [("", value)]
        for key, number in inner:
            if (real := finite(number)) is not None:
                yield f"{name}.{key}" if key else name, real


def finite(value: object) -> float | None:
    """Return `value` as a float if it is a finite number, else None: a file may contain anything."""
    if type(value) not in (int, float):
        return None
    try:
        real = float(value)  # type: ignore[arg-type]
    except OverflowError:
        return None
    return real if math.isfinite(real) else None
