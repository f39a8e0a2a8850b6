"""Searches of an array for the coordinates to send, on the processor or on a device: the steps of selections."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sized
from typing import Generic, Protocol, Self, TypeVar

from psnode.codecs.arrays import Words, Words32
from psnode.codecs.kernels.gather import STRIP


class Found(Protocol):
    """Coordinates that were found, where they lie: ascending flat indices and their values."""

    @property
    def indices(self) -> Sized:
        """The indices."""

    def scaled(self, factor: float) -> Self:
        """The values times `factor`, rounded once and within float32's range."""


F = TypeVar("F", bound=Found)


class Search(ABC, Generic[F]):
    """A search of `size` coordinates. Magnitudes are compared by their bits, as integers."""

    size: int

    @abstractmethod
    def limit(self, size: int, rank: float, key: Words, stream: int) -> int:
        """The bits, at least 1, of the rank-th largest of `size` sampled magnitudes; 1 if the rank exceeds the sample."""

    @abstractmethod
    def at_least(self, limit: int, most: int, room: int) -> F:
        """The coordinates whose magnitude has bits of at least `limit` >= 1; of more than `most` the largest.

        Of equal magnitudes the lowest indices. `room`: how many are expected; a multiple of it is allocated when there are
        more. Raises NonFiniteGradientError.
        """

    @abstractmethod
    def at(self, indices: Words32) -> F:
        """The coordinates at ascending `indices`. Raises NonFiniteGradientError if any value of the array is not finite."""

    @abstractmethod
    def root_mean_square(self) -> float:
        """The root of the mean square of all values. Raises NonFiniteGradientError."""

    def largest(self, keep: int, key: Words, stream: int) -> F:
        """The `keep` >= 1 largest, exactly; all that are not zero if there are fewer."""
        limit, size = 1, self.size
        room = size
        if size > 4 * STRIP:
            sampled = min(size // 64, 1 << 12)
            expected = sampled * keep / size
            rank = expected + 4 * math.sqrt(expected) + 3  # fewer than one scan in 10^4 finds too few
            room = int(size / sampled * (rank + 4 * math.sqrt(rank)))
            limit = self.limit(sampled, rank, key, stream)
        entries = self.at_least(limit, keep, room)
        if len(entries.indices) < keep and limit > 1:
            return self.at_least(1, keep, room)
        return entries
