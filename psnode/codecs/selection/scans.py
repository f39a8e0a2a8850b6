"""Arrays in which the largest values are searched. They are in memory or are computed during the search.

A copy, sum or difference needs no separate pass over memory, because the search computes it strip by strip.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from psnode.codecs import sources
from psnode.codecs.arrays import Floats, Words32, readonly
from psnode.codecs.kernels.large_values import gather, gather_added, gather_copied, gather_difference, take


class Scanned(ABC):
    """A flat array of `size` coordinates that a search reads."""

    size: int

    @abstractmethod
    def gather(self, start: int, limit: int, indices: Words32, found: Words32, count: int) -> tuple[int, int]:
        """Append the large values from coordinate `start` on, as kernels.large_values does.

        Every stretch must be gathered exactly once, in order. May raise NonFiniteGradientError. Otherwise values that are not
        finite are appended, because they reach every limit.
        """

    @abstractmethod
    def at(self, places: Words32) -> Floats:
        """Return the values at the ascending indices `places`. This method must be called before `gather`."""

    @abstractmethod
    def made(self) -> Floats:
        """Return the whole array. It is computed in a separate pass if necessary."""

    def gathered(self) -> Scanned:
        """Return the object to read in later searches, once the whole array has been gathered or made."""
        return self


class Plain(Scanned):
    """An array `x` in memory."""

    def __init__(self, x: Floats) -> None:
        self._x = x.reshape(-1)
        self.size = x.size

    def gather(self, start: int, limit: int, indices: Words32, found: Words32, count: int) -> tuple[int, int]:
        return gather(self._x, start, np.uint32(limit), indices, found, count, 0)

    def at(self, places: Words32) -> Floats:
        return take(self._x, places)

    def made(self) -> Floats:
        return self._x


class ScannedCopy(Scanned):
    """An array `x`, which the search copies to `target` (contiguous, in memory that x does not share)."""

    def __init__(self, x: Floats, target: Floats) -> None:
        self._x, self._target = x.reshape(-1), target.reshape(-1)
        self.size = x.size

    def gather(self, start: int, limit: int, indices: Words32, found: Words32, count: int) -> tuple[int, int]:
        return gather_copied(self._x, self._target, start, np.uint32(limit), indices, found, count)

    def at(self, places: Words32) -> Floats:
        return take(self._x, places)

    def made(self) -> Floats:
        np.copyto(self._target, self._x)
        return readonly(self._target)

    def gathered(self) -> Scanned:
        return Plain(readonly(self._target))


class ScannedSum(Scanned):
    """The target of the source `source`, to which the search adds the source's parts. Its methods raise the source's errors."""

    def __init__(self, source: sources.Accumulated) -> None:
        self._origin = source
        self._parts = [(place, readonly(part)) for place, part in source.parts]
        self._target = source.target.reshape(-1)
        self.size = source.size

    def gather(self, start: int, limit: int, indices: Words32, found: Words32, count: int) -> tuple[int, int]:
        self._origin.take()
        bits = np.uint32(limit)
        for place, part in self._parts:
            end = place + part.size
            if start < place:
                gap = readonly(self._target[:place])
                start, count = gather(gap, start, bits, indices, found, count, 0)
                if start < place:
                    return start, count
            if start < end:
                stop, reached = gather_added(part, self._target[place:end], start - place, bits, indices, found, count, place)
                if reached < 0:
                    self._origin.refuse(place + stop)
                start, count = place + stop, reached
                if start < end:
                    return start, count
        return gather(readonly(self._target), start, bits, indices, found, count, 0)

    def at(self, places: Words32) -> Floats:
        values = take(readonly(self._target), places)
        for place, part in self._parts:
            first, end = np.searchsorted(places, [place, place + part.size])
            values[first:end] += take(part, places[first:end] - np.uint32(place))
        return values

    def made(self) -> Floats:
        return self._origin.array().reshape(-1)

    def gathered(self) -> Scanned:
        return Plain(readonly(self._target))


class ScannedDifference(Scanned):
    """The difference x - y of `source`. Only `made` computes it as an array."""

    def __init__(self, source: sources.Difference) -> None:
        self._origin = source
        self._x, self._y = source.x.reshape(-1), source.y.reshape(-1)
        self._array: Floats | None = None
        self.size = source.size

    def gather(self, start: int, limit: int, indices: Words32, found: Words32, count: int) -> tuple[int, int]:
        return gather_difference(self._x, self._y, start, np.uint32(limit), indices, found, count)

    def at(self, places: Words32) -> Floats:
        return take(self._x, places) - take(self._y, places)

    def made(self) -> Floats:
        self._array = self._origin.array().reshape(-1)
        return self._array

    def gathered(self) -> Scanned:
        return self if self._array is None else Plain(self._array)


def scanned(source: sources.Source) -> Scanned:
    """Return `source` as the kind of Scanned that suits it."""
    match source:
        case sources.Accumulated(is_added=False):
            return ScannedSum(source)
        case sources.Copied():
            return ScannedCopy(source.x, source.target)
        case sources.Difference():
            return ScannedDifference(source)
    return Plain(source.array())
