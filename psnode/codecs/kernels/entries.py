"""Functions that write or add the entries of an array, given as ascending indices and their values."""

from __future__ import annotations

import numpy as np

from psnode.codecs.arrays import Floats, Words32
from psnode.codecs.kernels.jit import kernel


@kernel
def put_at(out: Floats, selected: Words32, values: Floats) -> None:
    """Write `values` to `out` at the ascending indices `selected`, and zeros elsewhere."""
    out[:] = 0
    for i in range(selected.size):
        out[selected[i]] = values[i]


@kernel
def add_at(out: Floats, selected: Words32, values: Floats, weight: np.float32) -> None:
    """Add weight * value to `out` at each of the indices `selected`. Both operations are rounded to float32."""
    for i in range(selected.size):
        out[selected[i]] += weight * values[i]
