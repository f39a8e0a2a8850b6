"""Interface of a search for the coordinates to send, implemented for the CPU and for devices."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sized
from typing import Generic, Protocol, Self, TypeVar

from psnode.codecs.arrays import Words, Words32
from psnode.codecs.kernels.large_values import STRIP


class Found(Protocol):
    """Coordinates that a search has found: ascending flat indices and their values, in the memory of the CPU or of a device."""

    @property
    def indices(self) -> Sized:
        """The ascending flat indices."""

    def scaled(self, factor: float) -> Self:
        """Return these coordinates with values multiplied by `factor`, rounded once and limited to float32's range."""


F = TypeVar("F", bound=Found)


class Search(ABC, Generic[F]):
    """A search among the magnitudes of `size` coordinates. Magnitudes are compared as integers, by the bits of the float32."""

    size: int

    @abstractmethod
    def limit(self, size: int, rank: float, key: Words, stream: int) -> int:
        """Return the bits of the rank-th largest of `size` randomly sampled magnitudes, at least 1. Return 1 if rank >= size."""

    @abstractmethod
    def at_least(self, limit: int, most: int, room: int) -> F:
        """Return the coordinates whose magnitudes have bits of at least `limit` >= 1.

        If there are more than `most`, return the `most` largest. Among equal magnitudes, the lowest indices are preferred.
        `room` is the expected number of coordinates. If there are more, a larger buffer is allocated. Raises
        NonFiniteGradientError.
        """

    @abstractmethod
    def at(self, indices: Words32) -> F:
        """Return the coordinates at the ascending `indices`.

        Raises NonFiniteGradientError if any value of the array is not finite.
        """

    @abstractmethod
    def root_mean_square(self) -> float:
        """Return the root mean square of all values. Raises NonFiniteGradientError."""

    def largest(self, keep: int, key: Words, stream: int) -> F:
        """Return the `keep` >= 1 largest coordinates, or all non-zero ones if there are fewer than `keep`."""
        limit, size = 1, self.size
        room = size
        if size > 4 * STRIP:
            sampled = min(size // 64, 1 << 12)
            expected = sampled * keep / size
            rank = expected + 4 * math.sqrt(expected) + 3  # fewer than one scan in 10^4 finds fewer than `keep`
            room = int(size / sampled * (rank + 4 * math.sqrt(rank)))
            limit = self.limit(sampled, rank, key, stream)
        entries = self.at_least(limit, keep, room)
        if len(entries.indices) < keep and limit > 1:
            return self.at_least(1, keep, room)
        return entries
