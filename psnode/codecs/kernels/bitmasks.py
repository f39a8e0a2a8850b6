"""64 comparisons as one word, and the positions of the ones in it, for scans that look for few large values."""

from __future__ import annotations

from typing import Any

import numpy as np

from psnode.codecs.arrays import Floats, Words32
from psnode.codecs.kernels.llvm.instructions import instructions
from psnode.codecs.kernels.llvm.operations import load, packed, population, spread, store, trailing_zeros

LANES = 64
MAGNITUDE = 0x7FFFFFFF  # of the bits of a float32; the magnitudes of finite values are ordered as their bits are


# For use inside kernels. Nothing checks that start + 63 lies within the array.


def _at_least(row: Any, limit: np.uint32) -> np.uint64:
    found: np.uint64 = packed((row & MAGNITUDE) >= spread(limit, LANES))
    return found


@instructions
def mask_at_least(bits: Words32, start: int, limit: np.uint32) -> np.uint64:
    """Bit j is set where the magnitude of the float32 with bits[start + j] is at least that of `limit`."""
    return _at_least(load(bits, start, LANES), limit)


@instructions
def mask_copied(x: Floats, target: Floats, start: int, limit: np.uint32) -> np.uint64:
    """Write x to 64 places of target, from `start` on of both, and compare the results."""
    row = load(x, start, LANES)
    store(target, start, row)
    return _at_least(row.view(np.uint32), limit)


@instructions
def mask_added(x: Floats, target: Floats, start: int, limit: np.uint32) -> np.uint64:
    """Add x to 64 places of target, from `start` on of both, and compare the results."""
    row = load(target, start, LANES) + load(x, start, LANES)
    store(target, start, row)
    return _at_least(row.view(np.uint32), limit)


@instructions
def lowest_one(word: np.uint64) -> int:
    """The position of the lowest one in `word`, which must not be 0."""
    found: int = trailing_zeros(word)
    return found


@instructions
def ones(word: np.uint64) -> int:
    """Number of ones in `word`."""
    found: int = population(word)
    return found
