"""Loops that copy, check or add float32 values, and the error for the first value that is not finite."""

from __future__ import annotations

import numpy as np

from psnode.codecs.arrays import Floats
from psnode.codecs.kernels.jit import kernel
from psnode.codecs.kernels.llvm.instructions import viewed
from psnode.errors import NonFiniteGradientError

INFINITY_BITS = 0x7F800000  # the magnitudes of infinity and NaN have, as integers, at least these bits
ROW = 512
_BLOCK = 4096


@kernel
def copy_finite(source: Floats, target: Floats) -> bool:
    """Copy 1-D `source` to `target` in one pass. Return True if all values are finite."""
    bits = viewed(source, np.uint32)
    top = np.uint32(0)
    for start in range(0, source.size, _BLOCK):
        stop = min(start + _BLOCK, source.size)
        part, there, magnitudes = source[start:stop], target[start:stop], bits[start:stop]
        for i in range(part.size):
            there[i] = part[i]
        for i in range(part.size):
            top = max(top, np.uint32(magnitudes[i] & np.uint32(0x7FFFFFFF)))
    return bool(top < np.uint32(INFINITY_BITS))


@kernel
def all_finite(values: Floats) -> bool:
    """Return True if all of 1-D `values` are finite."""
    bits = viewed(values, np.uint32)
    top = np.uint32(0)
    for i in range(bits.size):
        top = max(top, np.uint32(bits[i] & np.uint32(0x7FFFFFFF)))
    return bool(top < np.uint32(INFINITY_BITS))


@kernel
def add_scaled(values: Floats, out: Floats, weight: np.float32) -> None:
    """Add weight * values to `out`, both 1-D. The product and the sum are rounded to float32."""
    for i in range(out.size):
        out[i] += weight * values[i]


def raise_nonfinite(x: Floats, start: int = 0, kind: type[NonFiniteGradientError] = NonFiniteGradientError) -> None:
    """Raise an error of class `kind` for the first NaN or infinity in `x`. The first value of `x` is coordinate `start`."""
    flat = x.reshape(-1)
    index = int(np.flatnonzero(~np.isfinite(flat))[0])
    raise kind(start + index, float(flat[index]))
