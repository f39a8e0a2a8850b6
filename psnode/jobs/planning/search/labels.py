"""Search for the best cuts into groups, and for the best codec of each group, by label-setting in the model of step_clocks.

A label is the row of clocks after some groups. A cut is a point at which a group may end. A label at a cut is dropped if
another label at this cut is at least as early in every clock. Since every stage is monotone, the other label ends no
later, whatever groups follow. So the answer is exact (Martins, "On a multicriteria shortest path problem", Eur. J. Oper.
Res. 16, 1984), but the number of labels has no useful bound.

On a grid, clocks are rounded down to multiples of a step g before labels are compared. Dropping a label may then delay a
clock by less than g at every cut, and the use of weights, which is the sum of two clocks, by less than 2 g. So if the best
grouping has k groups, a grouping found with a grid is slower by less than 2 k g.

Labels that cannot end within SLACK of the quickest known grouping are dropped as well. A search with a grid begins with
searches on coarser grids, which find quick groupings early.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from psnode.errors import ConfigurationError
from psnode.jobs.planning.search.grouping import Grouping
from psnode.jobs.planning.search.step_clocks import (
    APPLIED,
    CLOCKS,
    CODER,
    ERROR,
    HOME,
    INWARD,
    LANES,
    OUTWARD,
    WORK,
    Floats,
    StepClocks,
    joined_small,
)
from psnode.plans.groups import IDENTITY
from psnode.plans.rule import MAX_SEGMENT, PARTITION

Places = npt.NDArray[np.int64]
GRID = 1e-3  # relative to a lower bound of the step
LEAST_NODE = 4096  # minimum coordinates of a tensor that may end a group
LEAST_PART = 4 * PARTITION  # minimum coordinates of a part, so that parts cut at multiples of PARTITION are about equal
SLACK = 0.002  # relative to the step of the quickest known grouping
_COARSER = (30, 6)  # factors of the grids of earlier searches, whose answers bound the last search from above
_FIRST_GUESSES = 16  # maximum number of equal groups that are tried before the search
_FEW_TENSORS = 32
_CUT, _ROW, _CANDIDATE, _PARTS = range(4)
_ROUNDING = 1e-9  # relative rounding error of sums that are compared with a limit


class _Labels(NamedTuple):
    """The labels at one cut. `clocks` and `origin` have one row for each label.

    A row of `origin` has four numbers: the cut before the last group, the row of the label at that cut, the number of the
    group's candidate, and the number of the group's parts.
    """

    clocks: Floats
    origin: Places

    def at(self, places: Places) -> _Labels:
        return _Labels(self.clocks[places], self.origin[places])


def searched(
    model: StepClocks,
    *,
    best: int = 1,
    budget: float | None = None,
    grid: float = GRID,
    least_node: int | None = None,
    parts: Sequence[int] = (1,),
) -> list[Grouping]:
    """Return the `best` quickest groupings that the search has found, quickest first; fewer if it has found fewer.

    The first grouping is the quickest of all whose error is within the `budget`; with a `grid` it is nearly the quickest
    (see this module's docstring). The others are the next quickest that the search found, and often differ little. A group
    without a coded tensor has a candidate that codes nothing, if there is one.

    `budget`: the largest `error` of a grouping. The default is the error under the model's first candidate, which is the
    scheme's own codec. `grid`: the step of the grid, relative to a lower bound of the training step and to the budget; 0:
    no grid. If the error of a candidate exceeds the budget, labels are also compared by error. The bound in this module's
    docstring then refers to the best grouping whose error is at least k grid steps below the budget. `least_node`: groups
    end only after tensors of at least this many coordinates. By default they may end after every tensor if the model has
    few tensors, otherwise after tensors of at least LEAST_NODE coordinates. `parts`: the numbers of equal parts in which a
    group may be sent; a part has at least LEAST_PART coordinates.

    Raises ConfigurationError if no grouping is within the budget.
    """
    if least_node is None:
        least_node = 0 if len(model.tensors) <= _FEW_TENSORS else LEAST_NODE
    search = _Search(model, joined_small(model.tensors, least_node), budget, parts)
    for coarser in (*_COARSER, 1) if grid else (1,):
        search.run(coarser * grid, best)
    found = search.known[:best]
    if not found:
        raise ConfigurationError("no codec of the candidates keeps the budget of errors: add one, or raise the budget")
    return found


class _Search:
    def __init__(self, model: StepClocks, ends: Sequence[int], budget: float | None, parts: Sequence[int]) -> None:
        self._model, self._parts = model, tuple(parts)
        self._cuts = np.array([0, *ends], np.int64)
        self._bounds = _Bounds(model)
        whole = np.array([0])
        errors = [float(model.times(whole, len(model.tensors), place).error[0]) for place in range(len(model.candidates))]
        self._budget = (errors[0] if budget is None else budget) * (1 + _ROUNDING)
        self._bare = np.array([candidate.codec == IDENTITY for candidate in model.candidates])
        self.known = list[Grouping]()  # the answers so far, the quickest first
        for guess in self._guesses():
            self._note(guess)
        self._least = float(self._bounds.seconds(model.start(), 0)[0])
        self._steps = np.zeros(len(CLOCKS))
        self._compared = [CODER, INWARD, LANES, OUTWARD, APPLIED, HOME]
        self._compared += [WORK] if model.scenario.shared else []
        self._compared += [ERROR] if max(errors) > self._budget else []
        self._labels: list[_Labels] = []

    def run(self, grid: float, best: int) -> None:
        """Search on a grid, and add the `best` quickest groupings to the known ones. `grid`: the step of the grid.

        The search drops groupings that are slower than the quickest known one, except for a small slack.
        """
        self._steps[:] = grid * self._least
        self._steps[WORK] *= self._model.scenario.cores * self._model.profile.host.crowded
        self._steps[ERROR] = grid * self._budget
        self._labels = [_Labels(self._model.start(), np.zeros((1, 4), np.int64))]
        clocks, place_of = self._labels[0].clocks, np.zeros((1, 2), np.int64)  # of all labels: the cut, and the row at this cut
        for place in range(1, len(self._cuts)):
            found = [self._labels[0].at(np.arange(0)), *self._arriving(place, clocks, place_of)]
            labels = _Labels(np.concatenate([each.clocks for each in found]), np.concatenate([each.origin for each in found]))
            if place < len(self._cuts) - 1:
                labels = labels.at(undominated(self._cells(labels.clocks, int(self._cuts[place]))))
            self._labels.append(labels)
            rows = np.arange(len(labels.clocks))
            clocks = np.concatenate([clocks, labels.clocks])
            place_of = np.concatenate([place_of, np.stack([np.full_like(rows, place), rows], axis=1)])
        last = self._labels[-1]
        seconds = self._model.seconds(last.clocks)
        for each in np.argsort(seconds, kind="stable")[:best]:
            self._note(self._grouping(last.at(np.array([each]))))

    def _note(self, found: Grouping) -> None:
        if all(found.groups != other.groups for other in self.known):
            self.known = sorted([*self.known, found], key=lambda grouping: grouping.seconds)

    def _grouping(self, label: _Labels) -> Grouping:
        """Return the grouping that `label`, a label at the last cut, stands for."""
        stops, chosen, parts = list[int](), list[int](), list[int]()
        place = len(self._cuts) - 1
        while place > 0:
            stops.append(int(self._cuts[place]))
            place, row, candidate, count = map(int, label.origin[0])
            chosen.append(candidate)
            parts.append(count)
            label = self._labels[place].at(np.array([row]))
        return self._model.grouping(stops[::-1], chosen[::-1], parts[::-1])

    def _arriving(self, place: int, clocks: Floats, place_of: Places) -> Iterator[_Labels]:
        """Yield the labels at the cut `place` that may lead to an answer, in batches.

        The labels of a batch agree in the candidate and the number of parts of the group that ends at the cut.
        """
        model, stop, owner = self._model, int(self._cuts[place]), place_of[:, 0]
        starts = self._cuts[:place]
        quickest = self.known[0].seconds if self.known else np.inf
        sizes = model.size(starts, stop)
        fits = (sizes <= MAX_SEGMENT) | (np.arange(place) == place - 1)
        for candidate, parts in product(range(len(model.candidates)), self._parts):
            enough = fits if parts == 1 else fits & (sizes >= parts * LEAST_PART)
            chosen = np.flatnonzero((enough & self._codes(starts, stop, candidate))[owner])
            if not len(chosen):
                continue
            times = model.times(starts, stop, candidate, parts)
            found = model.extend(clocks[chosen], times.of(owner[chosen]), parts)
            kept = found[:, ERROR] <= self._budget
            kept &= self._bounds.seconds(found, stop) <= quickest * (1 + SLACK)
            origin = np.empty((int(kept.sum()), 4), np.int64)
            origin[:, :_CANDIDATE] = place_of[chosen[kept]]
            origin[:, _CANDIDATE:] = candidate, parts
            yield _Labels(found[kept], origin)

    def _codes(self, starts: Places, stop: int, candidate: int) -> npt.NDArray[np.bool_]:
        """Return, for each start, True if the search must try the group from this start to `stop` under the candidate.

        It need not be tried if the candidate codes none of its tensors, and another candidate codes nothing anyway.
        """
        if self._bare[candidate] or not self._bare.any():
            return np.ones(len(starts), bool)
        return self._model.coded(starts, stop, candidate) > 0

    def _guesses(self) -> Iterator[Grouping]:
        """Yield simple groupings within the budget: groups of about equal size, all with the same candidate."""
        model = self._model
        sizes = model.size(np.array([0]), int(self._cuts[-1])) - model.size(self._cuts, int(self._cuts[-1]))
        for count in range(1, min(_FIRST_GUESSES, len(self._cuts) - 1) + 1):
            places = np.searchsorted(sizes, sizes[-1] * np.arange(1, count) / count)
            stops = [int(stop) for stop in np.unique(self._cuts[[*places, len(self._cuts) - 1]]) if stop]
            if (np.diff(sizes[np.searchsorted(self._cuts, [0, *stops])]) > MAX_SEGMENT).any():
                continue
            for candidate in range(len(model.candidates)):
                if not all(self._codes(np.array([a]), b, candidate).all() for a, b in pairwise([0, *stops])):
                    continue
                found = model.grouping(stops, [candidate] * len(stops))
                if found.error <= self._budget:
                    yield found

    def _cells(self, clocks: Floats, stop: int) -> Floats:
        """Return the clocks by which labels are compared, in cells of the grid.

        If a clock is earlier than the earliest moment at which the next group can need it, it is set to this moment. This
        changes no result.
        """
        found = clocks.copy()
        found[:, CODER] = np.maximum(found[:, CODER], self._model.tensors[stop].ready)
        for before, clock in ((CODER, INWARD), (INWARD, LANES), (LANES, OUTWARD)):
            found[:, clock] = np.maximum(found[:, clock], found[:, before])
        if self._model.reversed_from[stop]:
            found[:, HOME] = np.maximum(found[:, HOME], self._bounds.seconds(clocks, stop))
        found = found[:, self._compared]
        steps = self._steps[self._compared]
        return np.where(steps > 0, np.floor(found / np.where(steps > 0, steps, 1.0)), found)


class _Bounds:
    """Lower bounds of the duration of a step, for all groupings that begin with the groups of a label.

    They come from the slopes of the curves over all remaining tensors.
    """

    def __init__(self, model: StepClocks) -> None:
        self._model = model
        least, loads = model.least(), model.loads
        self._rest = {
            CODER: _left(least.encode),
            INWARD: _left(loads.inward * least.frame_in / loads.roots),
            LANES: _left((loads.gradients * least.decode + least.update) / model.lanes),
            OUTWARD: _left(loads.outward * least.frame_out / loads.roots),
            APPLIED: _left(least.apply),
        }
        profile = model.profile
        self._last_ready = max(profile.backward, float(least.ready[-1]))
        self._forward = profile.forward
        self._tail = profile.forward - min(float(least.needed[-1]), profile.forward)

    def seconds(self, labels: Floats, stop: int) -> Floats:
        """Return the lower bounds in seconds for `labels`, whose groups end before tensor number `stop`."""
        after = {clock: labels[:, clock] + rest[stop] for clock, rest in self._rest.items()}
        half = self._model.latency
        coded = np.maximum(after[CODER], self._last_ready) + self._forward
        home = np.maximum(np.maximum(after[INWARD] + half, after[LANES]), after[OUTWARD]) + half + self._tail
        found: Floats = np.maximum(np.maximum(coded, home) + after[APPLIED], labels[:, HOME])
        return np.maximum(found, self._model.shared_work(labels[:, WORK]))


def _left(values: Floats) -> Floats:
    """Return, for every position, the sum of the values from there to the end, and then 0 for the end itself."""
    return np.append(np.cumsum(values[::-1])[::-1], 0.0)


def undominated(rows: Floats) -> Places:
    """Return the indices of the undominated rows, in no special order.

    A row is dominated if another row is less or equal in every column. Of equal rows, only the first is returned.
    """
    left = np.argsort(rows.sum(axis=1), kind="stable")
    kept = []
    while len(left):
        first, left = left[0], left[1:]
        kept.append(first)
        left = left[(rows[left] < rows[first]).any(axis=1)]
    return np.array(kept, np.int64)
