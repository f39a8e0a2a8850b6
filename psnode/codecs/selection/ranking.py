"""Selection of the largest among float32 values given by their bits, by counting digits instead of sorting."""

from __future__ import annotations

import numpy as np

from psnode.codecs.arrays import Words32
from psnode.codecs.kernels.bitmasks import MAGNITUDE
from psnode.codecs.kernels.jit import kernel

_BINS = 4096


@kernel
def kth_largest(found: Words32, rank: int) -> tuple[np.uint32, int]:
    """Return (T, q): T is the rank-th largest magnitude, rank >= 1, and q of the values equal to T are among the `rank` largest.

    Digits are counted from the highest down, at most twelve bits of the range of the magnitudes at a time.
    """
    counts = np.empty(_BINS, np.int64)
    low, high = np.uint32(MAGNITUDE), np.uint32(0)
    for i in range(found.size):
        magnitude = np.uint32(found[i] & np.uint32(MAGNITUDE))
        low, high = min(low, magnitude), max(high, magnitude)
    while True:
        width = np.uint32(high - low)
        shift = np.uint32(0)
        while np.uint32(width >> shift) >= np.uint32(_BINS):
            shift += np.uint32(1)
        counts[:] = 0
        for i in range(found.size):
            offset = np.uint32(np.uint32(found[i] & np.uint32(MAGNITUDE)) - low)
            if offset <= width:
                counts[offset >> shift] += 1
        b = np.int64(width >> shift)
        while counts[b] < rank:
            rank -= counts[b]
            b -= 1
        low = np.uint32(low + (np.uint32(b) << shift))
        if shift == 0:
            return low, rank
        high = min(high, np.uint32(low + (np.uint32(1) << shift) - np.uint32(1)))


@kernel
def keep_largest(indices: Words32, found: Words32, count: int, keep: int) -> np.uint32:
    """Move the `keep` < count largest values to indices[:keep] and found[:keep], in their order; return the smallest of them."""
    limit, ties = kth_largest(found[:count], keep)
    kept = 0
    for i in range(count):
        index, value = indices[i], found[i]
        magnitude = np.uint32(value & np.uint32(MAGNITUDE))
        indices[kept] = index
        found[kept] = value
        tie = magnitude == limit and ties > 0
        ties -= tie
        kept += int(magnitude > limit or tie)
        if kept == keep:
            break
    return limit


@kernel
def peak(found: Words32) -> np.uint32:
    """Return the largest magnitude, or 0 if `found` is empty."""
    high = np.uint32(0)
    for i in range(found.size):
        high = max(high, np.uint32(found[i] & np.uint32(MAGNITUDE)))
    return high
