"""From 64 float32 to 64 bits and back. All of it is exact: results are the same everywhere."""

from __future__ import annotations

import numpy as np

from psnode.codecs.arrays import Bytes, Floats, Words32
from psnode.codecs.kernels.llvm.instructions import instructions
from psnode.codecs.kernels.llvm.operations import load, packed, select, spread, store, unpacked

GROUP = 64
_MAGNITUDE = 0x7FFFFFFF


# For use inside kernels. Nothing checks that start + 63 lies within the arrays.


@instructions
def store_masks(bits: Words32, start: int, negative: Bytes, zero: Bytes, at: int) -> None:
    """negative[at:at+8], zero[at:at+8]: which of the 64 float32 with bits[start:] have a sign bit, and which are zero."""
    row = load(bits, start, GROUP)
    store(negative, at, packed(row.view(np.int32) < 0))
    store(zero, at, packed((row & _MAGNITUDE) == 0))


@instructions
def put_levels(mask: np.uint64, low: np.float32, high: np.float32, out: Floats, start: int) -> None:
    """out[start:start+64] = low where `mask` has a one, else high."""
    store(out, start, select(unpacked(mask), spread(low, GROUP), spread(high, GROUP)))


@instructions
def add_levels(mask: np.uint64, low: np.float32, high: np.float32, source: Floats, out: Floats, start: int) -> None:
    """out[start:start+64] = source[start:start+64] + (low where `mask` has a one, else high)."""
    levels = select(unpacked(mask), spread(low, GROUP), spread(high, GROUP))
    store(out, start, load(source, start, GROUP) + levels)
