"""Selection of the largest among float32 values.

Magnitudes are compared by their bits, whose digits are counted instead of sorted.
"""

from __future__ import annotations

import numpy as np

from psnode.codecs.arrays import Words32
from psnode.codecs.kernels.bitmasks import MAGNITUDE
from psnode.codecs.kernels.jit import kernel

_BINS = 4096


@kernel
def kth_largest(found: Words32, rank: int) -> tuple[np.uint32, int]:
    """Return (T, q): T is the rank-th largest magnitude, and q is the number of values equal to T among the `rank` largest.

    `rank` is at least 1. Digits of the magnitudes are counted from the highest digit down. Each pass counts at most twelve bits
    of the remaining range of magnitudes.
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
    """Move the `keep` largest of the first `count` values to the front of `indices` and `found`, in their order.

    `keep` is below `count`. Return the smallest magnitude that was kept.
    """
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
    """Return the largest magnitude in `found`, or 0 if it is empty."""
    high = np.uint32(0)
    for i in range(found.size):
        high = max(high, np.uint32(found[i] & np.uint32(MAGNITUDE)))
    return high
