"""What may be searched for its largest values: an array, or one that comes about while it is searched.

A copy, a sum or a difference need no pass over memory of their own: the search makes them a strip at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from psnode.codecs.base import Floats, Parts, readonly
from psnode.codecs.kernels.bitmasks import Words32
from psnode.codecs.kernels.finite import all_finite, raise_nonfinite
from psnode.codecs.kernels.gather import gather, gather_added, gather_copied, gather_difference, take
from psnode.errors import NonFinitePartError


class Source(ABC):
    """An array of `size` coordinates, seen flat."""

    size: int

    @abstractmethod
    def gather(self, start: int, limit: int, indices: Words32, found: Words32, count: int) -> tuple[int, int]:
        """Append from `start` on as psnode.codecs.kernels.gather does. To be called once a stretch, in order.

        May raise NonFiniteGradientError, but need not: infinities and NaNs reach every limit.
        """

    @abstractmethod
    def at(self, places: Words32) -> Floats:
        """The values at ascending `places`, before anything is gathered."""

    @abstractmethod
    def made(self) -> Floats:
        """The array, of which nothing was gathered: in a pass of its own if it has to be made."""

    def gathered(self) -> Source:
        """What is to be read after all of the array was gathered, or made."""
        return self


class Plain(Source):
    """`x` as it is."""

    def __init__(self, x: Floats) -> None:
        self._x = x.reshape(-1)
        self.size = x.size

    def gather(self, start: int, limit: int, indices: Words32, found: Words32, count: int) -> tuple[int, int]:
        return gather(self._x, start, np.uint32(limit), indices, found, count, 0)

    def at(self, places: Words32) -> Floats:
        return take(self._x, places)

    def made(self) -> Floats:
        return self._x


class Copied(Source):
    """`x`, which is copied to `target` (contiguous, apart from x)."""

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

    def gathered(self) -> Source:
        return Plain(readonly(self._target))


class Summed(Source):
    """`target` (contiguous), to which an array in `parts` is added: in ascending order, apart from each other and from target.

    Raises NonFinitePartError where a part is not finite, and takes back what it had added: target is as it was, but for rounding.
    """

    def __init__(self, parts: Parts, target: Floats) -> None:
        self._parts = [(place, readonly(part)) for place, part in parts]
        self._target = target.reshape(-1)
        self.size = target.size

    def gather(self, start: int, limit: int, indices: Words32, found: Words32, count: int) -> tuple[int, int]:
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
                    self._take_back(place + stop)
                    raise_nonfinite(part, place, NonFinitePartError)
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
        for place, part in self._parts:
            if not all_finite(part):
                raise_nonfinite(part, place, NonFinitePartError)
        for place, part in self._parts:
            there = self._target[place : place + part.size]
            np.add(there, part, out=there)
        return readonly(self._target)

    def gathered(self) -> Source:
        return Plain(readonly(self._target))

    def _take_back(self, stop: int) -> None:
        """Subtract the parts from the target, as far as they were added."""
        for place, part in self._parts:
            there = self._target[place : min(place + part.size, max(stop, place))]
            np.subtract(there, part[: there.size], out=there)


class Difference(Source):
    """x - y, of equal shapes, which exists as a whole only if it is asked for, in `room`."""

    def __init__(self, x: Floats, y: Floats, room: Floats) -> None:
        self._x, self._y, self._room = x.reshape(-1), y.reshape(-1), room.reshape(-1)
        self._is_made = False
        self.size = x.size

    def gather(self, start: int, limit: int, indices: Words32, found: Words32, count: int) -> tuple[int, int]:
        return gather_difference(self._x, self._y, start, np.uint32(limit), indices, found, count)

    def at(self, places: Words32) -> Floats:
        return take(self._x, places) - take(self._y, places)

    def made(self) -> Floats:
        self._is_made = True
        return readonly(np.subtract(self._x, self._y, out=self._room))

    def gathered(self) -> Source:
        return Plain(readonly(self._room)) if self._is_made else self
