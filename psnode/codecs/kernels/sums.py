"""The norm of a sum. It is computed in the sweep that adds the parts, while each stretch is in the first-level cache."""

from __future__ import annotations

import numpy as np

from psnode.codecs.arrays import Floats
from psnode.codecs.kernels.cache_hints import copy_to, wide
from psnode.codecs.kernels.jit import kernel
from psnode.codecs.kernels.norms import CHUNK, SAFE_HIGH, SAFE_LOW, inner_512, l2_norm
from psnode.codecs.kernels.parts import BEGIN, NOT_FINITE, STRETCH, PartTable, add_parts

_LARGEST, _DOWN = float(np.finfo(np.float32).max), np.float32(2.0**-20)


@kernel
def l2_of_sum(x: Floats, parts: PartTable) -> float:
    """Add `parts` to the memory of `x`, and return the norm of the result as l2_norm does.

    Return NOT_FINITE if a value or a part is not finite.
    """
    wide()
    scratch, rest = np.empty(CHUNK + 64, np.float32), np.zeros(CHUNK, np.float32)
    total, cursor, full = 0.0, BEGIN, x.size // CHUNK * CHUNK
    for start in range(0, x.size, STRETCH):
        if len(parts) > 1:
            cursor = add_parts(parts, cursor, start, min(start + STRETCH, x.size))
            if cursor == NOT_FINITE:
                return float(NOT_FINITE)
        for row in range(start, min(start + STRETCH, full), CHUNK):
            part = x[row : row + CHUNK]
            total += np.float64(inner_512(part, part, scratch))
    if full < x.size:
        copy_to(x[full:], rest)
        total += np.float64(inner_512(rest, rest, scratch))
    return float(np.sqrt(total)) if SAFE_LOW <= total <= SAFE_HIGH else float(l2_norm(x, scratch))


@kernel
def uncut(norm: float, x: Floats) -> float:
    """Return the L2 norm of `x` without limiting it to the largest float32. `norm` is the norm by l2_norm."""
    if norm < _LARGEST:
        return float(norm)
    return float(l2_norm(x * _DOWN, np.empty(CHUNK + 64, np.float32)) / np.float64(_DOWN))
