"""Search for the k largest magnitudes of a vector in one pass over memory.

A random sample of the vector gives a threshold that about k coordinates reach. The scan keeps the values that reach the
threshold, in a buffer of bounded size. When the buffer is full, only the k largest values so far are kept, and the threshold
rises. Therefore the result does not depend on the sample. Among equal magnitudes, the coordinates with the lowest indices are
selected. Zeros are never selected: if fewer than k values are not zero, the result has fewer than k entries.

Magnitudes are compared by their bits, so that infinities and NaNs are larger than all finite values. If the vector has any, at
least one of them is among the values found.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from psnode.codecs.arrays import Floats, Words, Words32
from psnode.codecs.kernels.finite import INFINITY_BITS, raise_nonfinite
from psnode.codecs.kernels.large_values import STRIP, places
from psnode.codecs.kernels.norms import NOT_FINITE, l2_norm, max_norm
from psnode.codecs.selection.ranking import keep_largest, kth_largest, peak
from psnode.codecs.selection.scans import Scanned
from psnode.codecs.selection.threshold_search import Search

_LARGEST = float(np.finfo(np.float32).max)
_SCRATCH = 576  # float32 values of workspace for l2_norm


class Entries(NamedTuple):
    """Selected coordinates: ascending flat indices (uint32) and their values (float32)."""

    indices: Words32
    values: Floats

    def scaled(self, factor: float) -> Entries:
        """Return these entries with values multiplied by `factor`, rounded once and limited to float32's range."""
        scaled = np.clip(self.values.astype(np.float64) * factor, -_LARGEST, _LARGEST)
        return self._replace(values=scaled.astype(np.float32))


def longer(array: Words32, most: int) -> Words32:
    """Return a copy of `array` that is twice as long, but has at most length `most`."""
    longer = np.empty(min(2 * array.size, most), np.uint32)
    longer[: array.size] = array
    return longer


class Scan(Search[Entries]):
    """A search of `source` on the CPU.

    If the source is a sum or copy, the first full pass writes it to memory for later passes.
    """

    def __init__(self, source: Scanned) -> None:
        self._source = source
        self.size = source.size

    def _array(self) -> Floats:
        """Return the whole array, flat. If no search has computed it yet, it is computed in a separate pass."""
        array = self._source.made()
        self._source = self._source.gathered()
        return array

    def at(self, indices: Words32) -> Entries:
        array = self._array()
        if max_norm(array) == NOT_FINITE:
            raise_nonfinite(array)
        return Entries(indices, array[indices])

    def root_mean_square(self) -> float:
        array = self._array()
        norm = l2_norm(array, np.empty(_SCRATCH, np.float32))
        if norm == NOT_FINITE:
            raise_nonfinite(array)
        return norm / math.sqrt(self.size)

    def limit(self, size: int, rank: float, key: Words, stream: int) -> int:
        if rank >= size:
            return 1
        sampled = np.empty(size, np.uint32)
        places(self.size, key, stream, sampled)
        found = self._source.at(sampled).view(np.uint32)
        return max(1, int(kth_largest(found, max(1, math.ceil(rank)))[0]))

    def at_least(self, limit: int, most: int, room: int) -> Entries:
        full = min(most + max(most // 2, STRIP), self.size) + STRIP
        room = min(room + STRIP, full)
        indices, found = np.empty(room, np.uint32), np.empty(room, np.uint32)
        stop = count = 0
        while True:
            stop, count = self._source.gather(stop, limit, indices, found, count)
            if stop == self.size:
                break
            if indices.size < full:
                indices, found = longer(indices, full), longer(found, full)
            else:
                limit = int(keep_largest(indices, found, count, most)) + 1
                count = most
        if count > most:
            keep_largest(indices, found, count, most)
            count = most
        self._source = self._source.gathered()
        if int(peak(found[:count])) >= INFINITY_BITS:
            raise_nonfinite(self._source.made())
        return Entries(indices[:count], found[:count].view(np.float32))
