"""Entries of an array, ascending indices and their values, put in place or added."""

from __future__ import annotations

import numpy as np

from psnode.codecs.arrays import Floats, Words32
from psnode.codecs.kernels.jit import kernel


@kernel
def put_at(out: Floats, selected: Words32, values: Floats) -> None:
    """`out` becomes zero but for `values` at the ascending indices `selected`."""
    out[:] = 0
    for i in range(selected.size):
        out[selected[i]] = values[i]


@kernel
def add_at(out: Floats, selected: Words32, values: Floats, weight: np.float32) -> None:
    """Add weight * value, both operations rounded to float32, at the indices `selected`."""
    for i in range(selected.size):
        out[selected[i]] += weight * values[i]
