"""The k largest magnitudes of a vector, in one pass over memory.

A random sample of the vector gives a threshold that about k coordinates reach. The scan keeps what reaches it; whenever
its buffer is full, what does not belong to the k largest so far is dropped and the threshold rises. So the result does
not depend on the sample, ties and zeros cost nothing, and the workspace is bounded. Of equal magnitudes the lowest
indices win. Zeros are never selected: there are fewer than k entries where fewer are not zero.

Infinities and NaNs have the largest magnitudes of all: where there are any, one is among the selected.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from psnode.codecs.base import Floats, Words, readonly
from psnode.codecs.kernels.bitmasks import Words32
from psnode.codecs.kernels.finite import INFINITY_BITS, raise_nonfinite
from psnode.codecs.kernels.gather import STRIP, gather, gather_into, sample
from psnode.codecs.selection.ranking import keep_largest, kth_largest, peak

_NOTHING = np.empty(0, np.float32)


class Entries(NamedTuple):
    """Selected coordinates: ascending flat indices (uint32) and their values (float32)."""

    indices: Words32
    values: Floats


def _longer(array: Words32, most: int) -> Words32:
    longer = np.empty(min(2 * array.size, most), np.uint32)
    longer[: array.size] = array
    return longer


class Scan(NamedTuple):
    """What is scanned: `x`, or `target` (contiguous, apart from x) after `x` was copied or, if `add`, added to it."""

    x: Floats
    target: Floats | None = None
    add: bool = False

    def done(self) -> Scan:
        """The same once the target has been written."""
        return self if self.target is None else Scan(readonly(self.target))

    def written(self) -> Scan:
        """The same with the target written now."""
        if self.target is not None:
            np.add(self.target, self.x, out=self.target) if self.add else np.copyto(self.target, self.x)
        return self.done()

    def limit(self, size: int, rank: float, key: Words, stream: int) -> int:
        """The bits, at least 1, of the rank-th largest of `size` sampled magnitudes; 1 if the rank exceeds the sample."""
        if rank >= size:
            return 1
        found = np.empty(size, np.uint32)
        residual = self.target.reshape(-1) if self.add and self.target is not None else _NOTHING
        sample(self.x.reshape(-1), readonly(residual), key, stream, found)
        return max(1, int(kth_largest(found, max(1, math.ceil(rank)))[0]))

    def at_least(self, limit: int, most: int, room: int) -> Entries:
        """The coordinates whose magnitude has bits of at least `limit` >= 1; of more than `most` the largest.

        `room`: how many are expected; a multiple of it is allocated when there are more. Raises NonFiniteGradientError.
        """
        x, target = self.x.reshape(-1), None if self.target is None else self.target.reshape(-1)
        full = min(most + max(most // 2, STRIP), x.size) + STRIP
        room = min(room + STRIP, full)
        indices, found = np.empty(room, np.uint32), np.empty(room, np.uint32)
        stop = count = 0
        while True:
            if target is None:
                stop, count = gather(x, stop, np.uint32(limit), indices, found, count)
            else:
                stop, count = gather_into(x, target, self.add, stop, np.uint32(limit), indices, found, count)
            if stop == x.size:
                break
            if indices.size < full:
                indices, found = _longer(indices, full), _longer(found, full)
            else:
                limit = int(keep_largest(indices, found, count, most)) + 1
                count = most
        if count > most:
            keep_largest(indices, found, count, most)
            count = most
        if int(peak(found[:count])) >= INFINITY_BITS:
            raise_nonfinite(self.done().x)
        return Entries(indices[:count], found[:count].view(np.float32))

    def largest(self, keep: int, key: Words, stream: int) -> Entries:
        """The `keep` >= 1 largest, exactly; all that are not zero if there are fewer."""
        limit, size = 1, self.x.size
        room = size
        if size > 4 * STRIP:
            sampled = min(size // 64, 1 << 14)
            expected = sampled * keep / size
            rank = expected + 4 * math.sqrt(expected) + 3  # fewer than one scan in 10^4 finds too few
            room = int(size / sampled * (rank + 4 * math.sqrt(rank)))
            limit = self.limit(sampled, rank, key, stream)
        entries = self.at_least(limit, keep, room)
        if entries.indices.size < keep and limit > 1:
            return self.done().at_least(1, keep, room)
        return entries
