"""Masks of 64 comparisons, as the bits of one word, and the positions of the ones in a word.

Scans that look for few large values use them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from psnode.codecs.arrays import Floats, Words32
from psnode.codecs.kernels.llvm.instructions import instructions
from psnode.codecs.kernels.llvm.operations import load, packed, population, spread, store, trailing_zeros

LANES = 64
MAGNITUDE = 0x7FFFFFFF  # bits of a float32 without the sign; as integers, they are ordered like finite magnitudes


# The functions below are for use inside kernels. They do not check that start + 63 is within the array.


def _at_least(row: Any, limit: np.uint32) -> np.uint64:
    found: np.uint64 = packed((row & MAGNITUDE) >= spread(limit, LANES))
    return found


@instructions
def mask_at_least(bits: Words32, start: int, limit: np.uint32) -> np.uint64:
    """Return a word in which bit j is 1 if the magnitude of value start + j is at least that of `limit`.

    Values are given by their float32 bits.
    """
    return _at_least(load(bits, start, LANES), limit)


@instructions
def mask_copied(x: Floats, target: Floats, start: int, limit: np.uint32) -> np.uint64:
    """Copy 64 values of x, from `start` on, to the same positions of target, and return the mask of the copied values."""
    row = load(x, start, LANES)
    store(target, start, row)
    return _at_least(row.view(np.uint32), limit)


@instructions
def mask_added(x: Floats, target: Floats, start: int, limit: np.uint32) -> np.uint64:
    """Add 64 values of x, from `start` on, to the same positions of target, and return the mask of the sums."""
    row = load(target, start, LANES) + load(x, start, LANES)
    store(target, start, row)
    return _at_least(row.view(np.uint32), limit)


@instructions
def lowest_one(word: np.uint64) -> int:
    """Return the position of the lowest bit that is 1 in `word`, which must not be 0."""
    found: int = trailing_zeros(word)
    return found


@instructions
def ones(word: np.uint64) -> int:
    """Return the number of bits that are 1 in `word`."""
    found: int = population(word)
    return found
