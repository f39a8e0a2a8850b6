"""Inner products in float64 whose order of summation is fixed, so that they are equal on every machine."""

from __future__ import annotations

import numpy as np

from psnode.codecs.arrays import Floats
from psnode.codecs.kernels.jit import kernel

LANES = 16
BLOCK = 1024


@kernel
def _inner_products(x: Floats, y: Floats) -> tuple[float, float]:
    """<x, y> and <y, y> of 1-D arrays: in every block of 1024, lane l of 16 sums coordinates l mod 16; then the lanes."""
    xy_total = 0.0
    yy_total = 0.0
    xy = np.empty(LANES, np.float64)
    yy = np.empty(LANES, np.float64)
    for start in range(0, x.size, BLOCK):
        stop = min(start + BLOCK, x.size)
        xy[:] = 0.0
        yy[:] = 0.0
        full = start + (stop - start) // LANES * LANES
        for row in range(start, full, LANES):
            for lane in range(LANES):
                b = np.float64(y[row + lane])
                xy[lane] += np.float64(x[row + lane]) * b
                yy[lane] += b * b
        for i in range(full, stop):
            b = np.float64(y[i])
            xy[i - full] += np.float64(x[i]) * b
            yy[i - full] += b * b
        for lane in range(LANES):
            xy_total += xy[lane]
            yy_total += yy[lane]
    return xy_total, yy_total


def inner_products(x: Floats, y: Floats) -> tuple[float, float]:
    """<x, y> and <y, y> of arrays of equal size, in float64."""
    return _inner_products(x.reshape(-1), y.reshape(-1))
