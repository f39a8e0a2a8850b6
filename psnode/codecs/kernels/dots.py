"""Inner products in float64 whose order of summation is fixed, so that they are equal on every machine."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from psnode.codecs.arrays import Float64s, Floats
from psnode.codecs.kernels.jit import kernel
from psnode.codecs.kernels.memory import wide

LANES = 16
BLOCK = 1024


class Lost(NamedTuple):
    """Outputs of a kernel that knows what its payload decodes to: `error` = x - decoded, which may lie over x, and `dots`.

    The latter are <x, decoded> and <decoded, decoded>, to which is added. An output of size 0 is left alone.
    """

    error: Floats
    dots: Float64s


NO_DOTS = np.empty(0, np.float64)
NOTHING_LOST = Lost(np.empty(0, np.float32), NO_DOTS)


@kernel
def add_inner_products(x: Floats, y: Floats, dots: Float64s) -> None:
    """Add <x, y> and <y, y> of 1-D arrays: in every block of 1024, lane l of 16 sums coordinates l mod 16; then the lanes."""
    wide()
    xy_total, yy_total = dots[0], dots[1]
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
    dots[0], dots[1] = xy_total, yy_total


def begun() -> Float64s:
    """Inner products of no rows yet, to which `add_row` adds: two sums, then the lanes of a block of which one row is known."""
    return np.zeros(2 + 2 * LANES)


@kernel
def add_row(x: Floats, y: Floats, row: int, dots: Float64s) -> None:
    """Add <x, y> and <y, y> of row number `row`, of 512 values; two rows are a block of add_inner_products."""
    wide()
    xy, yy = dots[2 : 2 + LANES], dots[2 + LANES :]
    if row % 2 == 0:
        for lane in range(2 * LANES):
            dots[2 + lane] = 0.0
    for start in range(0, BLOCK // 2, LANES):
        for lane in range(LANES):
            b = np.float64(y[start + lane])
            xy[lane] += np.float64(x[start + lane]) * b
            yy[lane] += b * b
    if row % 2 == 1:
        close(dots)


@kernel
def close(dots: Float64s) -> None:
    """Add the lanes of the last block to the sums."""
    for lane in range(LANES):
        dots[0] += dots[2 + lane]
        dots[1] += dots[2 + LANES + lane]


def inner_products(x: Floats, y: Floats) -> tuple[float, float]:
    """<x, y> and <y, y> of arrays of equal size, in float64."""
    dots = np.zeros(2)
    add_inner_products(x.reshape(-1), y.reshape(-1), dots)
    return float(dots[0]), float(dots[1])
