"""Finding values that are not finite: in passing, while copying, and by index once one was noticed."""

from __future__ import annotations

import numpy as np

from psnode.codecs.base import Floats
from psnode.codecs.jit import kernel
from psnode.errors import NonFiniteGradientError

INFINITY_BITS = 0x7F800000  # of the magnitudes, seen as integers, those from here on are infinity and NaN
_BLOCK = 4096


@kernel
def copy_finite(source: Floats, target: Floats) -> bool:
    """Copy 1-D `source` to `target` in one pass; whether all of it is finite."""
    bits = source.view(np.uint32)
    top = np.uint32(0)
    for start in range(0, source.size, _BLOCK):
        stop = min(start + _BLOCK, source.size)
        target[start:stop] = source[start:stop]
        for i in range(start, stop):
            top = max(top, np.uint32(bits[i] & np.uint32(0x7FFFFFFF)))
    return bool(top < np.uint32(INFINITY_BITS))


def raise_nonfinite(x: Floats) -> None:
    """Raise NonFiniteGradientError for the first NaN or infinity of `x`."""
    flat = x.reshape(-1)
    index = int(np.flatnonzero(~np.isfinite(flat))[0])
    raise NonFiniteGradientError(index, float(flat[index]))
