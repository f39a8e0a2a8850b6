"""Curves of codecs: the seconds and bytes of a group as linear functions of its numbers of coordinates.

They are fitted to measured groups, and give the costs of groups that were not measured. A fit is a least squares fit whose
coefficients are not negative, since no part of a cost is negative.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import combinations
from typing import overload

import numpy as np
import numpy.typing as npt

from psnode.errors import ConfigurationError
from psnode.jobs.planning.profile import GroupCosts, SchemeCosts

Counts = npt.NDArray[np.float64]


@dataclass(frozen=True)
class CostLine:
    """The coefficients of a group's cost, which is a linear function of its numbers of coordinates.

    The cost is `fixed`, plus `coded` for each coded coordinate, plus `plain` for each uncoded coordinate.
    """

    fixed: float
    coded: float
    plain: float

    @overload
    def at(self, coded: float, plain: float) -> float: ...
    @overload
    def at(self, coded: Counts, plain: Counts) -> Counts: ...
    def at(self, coded: float | Counts, plain: float | Counts) -> float | Counts:
        """Return the cost of a group with `coded` coded and `plain` uncoded coordinates."""
        return self.fixed + self.coded * coded + self.plain * plain


@dataclass(frozen=True)
class CodecCurves:
    """The costs of a group under a pair of codecs, one for each direction. Each cost is a CostLine.

    The lines stand for the fields of GroupCosts: `up` and `down` in bytes, the others in seconds of one core. The lines
    `extra` and `bookkeeping` belong to fields of SchemeCosts: they give one group's part of `extra`, and the `bookkeeping`
    for one frame.
    """

    up: CostLine
    down: CostLine
    encode: CostLine
    apply: CostLine
    decode: CostLine
    update: CostLine
    extra: CostLine
    bookkeeping: CostLine

    def group(self, coded: int, plain: int, ready: float, needed: float) -> GroupCosts:
        """Return the costs of a group with these numbers of coordinates. `ready`, `needed`: in seconds, see GroupCosts."""
        return GroupCosts(
            round(self.up.at(coded, plain)), round(self.down.at(coded, plain)), self.encode.at(coded, plain),
            self.apply.at(coded, plain), self.decode.at(coded, plain), self.update.at(coded, plain), ready, needed, coded, plain,
        )  # fmt: skip


_OF_GROUPS = ("up", "down", "apply", "decode", "update")
# measured for all groups together: a worker reports the seconds of all its coding, and the report is one frame more than the
# groups have
_OF_STEPS: dict[str, Callable[[SchemeCosts], float]] = {
    "encode": lambda costs: sum(group.encode for group in costs.groups),
    "extra": lambda costs: costs.extra,
    "bookkeeping": lambda costs: costs.bookkeeping * (len(costs.groups) + 1),
}


def fitted_curves(measured: Sequence[SchemeCosts]) -> CodecCurves:
    """Return the curves of a scheme, fitted to its measurements with several groupings of one model.

    Raises ConfigurationError if all groupings have the same number of groups, because the fixed costs are then unknown. Also
    raises it if the groups do not state how many of their coordinates are coded.
    """
    if len({len(costs.groups) for costs in measured}) < 2:
        raise ConfigurationError("a search for groups needs a model of several layers: this one always travels as a whole")
    groups = [group for costs in measured for group in costs.groups]
    if not any(group.coded or group.plain for group in groups):
        raise ConfigurationError("curves need groups that tell their coordinates: measure the profile again")
    single = [(1.0, group.coded, group.plain) for group in groups]
    sums = [(sum(group.coded for group in costs.groups), sum(group.plain for group in costs.groups)) for costs in measured]
    lines = {name: fitted_line(single, [getattr(group, name) for group in groups]) for name in _OF_GROUPS}
    for name, cost in _OF_STEPS.items():
        more = int(name == "bookkeeping")
        whole = [(len(costs.groups) + more, *each) for costs, each in zip(measured, sums, strict=True)]
        lines[name] = fitted_line(whole, [cost(costs) for costs in measured])
    return CodecCurves(**lines)


def fitted_line(counts: Iterable[Sequence[float]], costs: Sequence[float]) -> CostLine:
    """Return the CostLine that fits `costs` best.

    `counts`: for each cost, the numbers of groups, of coded coordinates and of plain coordinates that cause it. The squared
    error of a cost is divided by the cost, so that small groups matter next to large ones.
    """
    target = np.asarray(costs, float)
    weights = 1 / np.sqrt(np.maximum(target, target.max() * 1e-6)) if target.max() > 0 else np.ones_like(target)
    return CostLine(*nonnegative_fit(weights[:, None] * np.asarray(list(counts), float), weights * target))


def nonnegative_fit(matrix: Counts, target: Counts) -> list[float]:
    """Return the vector x >= 0 that minimises |matrix x - target|. It tries all sets of columns, so these must be few.

    Of equally good answers, the one that uses the fewest columns is returned.
    """
    columns = matrix.shape[1]
    scale = np.abs(matrix).max(axis=0)
    scale[scale == 0] = 1.0
    best, least = np.zeros(columns), float(np.linalg.norm(target))
    tolerance = 1e-12 * max(least, 1e-300)
    for count in range(1, columns + 1):
        for used in map(list, combinations(range(columns), count)):
            found = np.linalg.lstsq(matrix[:, used] / scale[used], target, rcond=None)[0]
            if (found < 0).any():
                continue
            miss = float(np.linalg.norm(matrix[:, used] / scale[used] @ found - target))
            if miss < least - tolerance:
                best, least = np.zeros(columns), miss
                best[used] = found / scale[used]
    return [float(each) for each in best]


def mixed_curves(up: CodecCurves, down: CodecCurves) -> CodecCurves:
    """Return the curves of a pair of codecs, taken from the curves `up` and `down` of two schemes.

    Gradients have the costs of the scheme `up`. Updates and changes of weights have those of the scheme `down`.
    """
    taken = {name: getattr(down, name) for name in ("down", "apply", "update")}
    return CodecCurves(**{each.name: taken.get(each.name, getattr(up, each.name)) for each in fields(CodecCurves)})
