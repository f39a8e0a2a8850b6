"""The steps of a run as columns of numbers, with cumulative totals, and their reduction to a few points for a curve."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from psnode.codecs.arrays import Float64s, Int64s

AXES = ("steps", "seconds", "bytes")
MOST_POINTS = 160  # maximum points of a curve; a band shows the values in between
_ABSENT = math.nan


class Curve(NamedTuple):
    """The points of a curve, one for each bucket of steps: the mean, minimum and maximum of the bucket, at its last step."""

    steps: Float64s
    mean: Float64s
    low: Float64s
    high: Float64s


@dataclass(frozen=True)
class Steps:
    """Quantities of the finished updates, in order, as one column for each quantity. The value nan stands for unknown.

    `columns`: by a dotted name, such as `loss`, `seconds.encode` or `metrics.top1`. `number`: the step of each update.
    """

    number: Float64s = field(default_factory=lambda: np.zeros(0))
    columns: Mapping[str, Float64s] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.number.size

    def column(self, name: str) -> Float64s:
        """Return the values of the quantity `name` for all steps; nan where it is unknown."""
        return self.columns.get(name, np.full(self.number.size, _ABSENT))

    def known(self, name: str) -> Float64s:
        """Return the values of the quantity `name` that are known."""
        values = self.column(name)
        return values[np.isfinite(values)]

    def sum(self, *names: str) -> float:
        """Return the sum of the quantities `names` over all steps."""
        return float(sum(np.sum(self.known(name)) for name in names))

    def totals(self, axis: str) -> Float64s:
        """Return the position of each step on `axis`.

        On the axis "steps" it is the number of the step. On the others it is the seconds or bytes of the whole job up to the
        step's end.
        """
        if axis == "steps":
            return self.number
        names = ("seconds.step",) if axis == "seconds" else ("uplink_bytes", "downlink_bytes")
        found = np.zeros(self.number.size)
        for name in names:
            found += np.nan_to_num(self.column(name))
        return np.cumsum(found)

    def place(self, axis: str, step: Sequence[float] | Float64s) -> Float64s:
        """Return the positions on `axis` of the steps with the numbers `step`.

        A step without a record has the position of the last recorded step before it.
        """
        wanted = np.asarray(step, np.float64)
        if axis == "steps" or not len(self):
            return wanted
        at = np.searchsorted(self.number, wanted, side="right")
        return np.concatenate([[0.0], self.totals(axis)])[at]

    def curve(self, name: str, most: int = MOST_POINTS) -> Curve:
        """Return the curve of a quantity, in at most `most` buckets of about equally many steps.

        Steps for which the quantity is unknown are left out.
        """
        told = np.isfinite(self.column(name))
        number, values = self.number[told], self.column(name)[told]
        edges = _edges(values.size, most)
        parts = [values[a:b] for a, b in pairwise(edges)]
        return Curve(
            np.array([number[b - 1] for b in edges[1:]]),
            np.array([np.mean(part) for part in parts]),
            np.array([np.min(part) for part in parts]),
            np.array([np.max(part) for part in parts]),
        )


def mean_curve(tables: Sequence[Steps], name: str, most: int = MOST_POINTS) -> Curve:
    """Return the curve of the mean of a quantity over several runs, in at most `most` buckets of about equally many steps.

    `low` and `high` are the lowest and the highest mean of a run in the bucket. Tables without the quantity are ignored.
    Steps that are missing from one of the remaining tables are left out.
    """
    wanted = [table for table in tables if table.known(name).size]
    known = [
        {step: value for step, value in zip(table.number, table.column(name), strict=True) if math.isfinite(value)}
        for table in wanted
    ]
    number = np.array(sorted(set[float]().union(*known).intersection(*known)))
    edges = _edges(number.size, most)
    values = np.array([[each[step] for step in number] for each in known]).reshape(len(known), number.size)
    parts = np.array([values[:, a:b].mean(axis=1) for a, b in pairwise(edges)]).reshape(len(edges) - 1, len(known))
    if not parts.size:
        return Curve(*(np.zeros(0) for _ in Curve._fields))
    return Curve(number[edges[1:] - 1], parts.mean(axis=1), parts.min(axis=1), parts.max(axis=1))


def _edges(count: int, most: int) -> Int64s:
    """Return the bounds of at most `most` buckets that divide `count` values about equally."""
    return np.unique(np.linspace(0, count, min(most, count) + 1).astype(np.int64)) if count else np.zeros(1, np.int64)


def columns_of(records: Iterable[Mapping[str, Any]]) -> Steps:
    """Return the records of metrics.jsonl or evaluations.jsonl as columns.

    Values that are not finite numbers count as unknown.
    """
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
    """Return `value` as a float if it is a finite number, otherwise None. The value may be anything that a file contains."""
    if type(value) not in (int, float):
        return None
    try:
        real = float(value)  # type: ignore[arg-type]
    except OverflowError:
        return None
    return real if math.isfinite(real) else None
