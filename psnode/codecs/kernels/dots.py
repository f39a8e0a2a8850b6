"""Inner products in a fixed order of summation, so that they are equal on every machine.

Contractive forms compute a factor from two inner products. Most of them sum these by trees, in an order that any number of
processors can keep. Within each row of 512, products and their sums are float32, added by the tree of
psnode.codecs.kernels.norms. If <y, y> of a row is below 2^-100, or <x, y> or <y, y> is not finite, the row is computed in
float64 by the same tree. Rows are added as psnode.codecs.kernels.trees describes.

`inner_products` computes in float64, and adds one block of 1024 coordinates after another.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from psnode.codecs.arrays import Float64s, Floats
from psnode.codecs.kernels.cache_hints import copy_to, wide
from psnode.codecs.kernels.jit import inlined, kernel
from psnode.codecs.kernels.llvm.instructions import viewed
from psnode.codecs.kernels.norms import fold
from psnode.codecs.kernels.trees import ROW, tree_of

LANES = 16
BLOCK = 1024
LEAST = 2.0**-100  # if <y, y> is below this, the rounding of float32 products might matter
_SCRATCH = 64


class Lost(NamedTuple):
    """Outputs of a kernel that also computes the decoded values: `error` and `dots`.

    `error` receives x - decoded, and may share the memory of x. `dots` receives <x, decoded> and <decoded, decoded>: see
    `begun`. An output of size 0 is not written.
    """

    error: Floats
    dots: Float64s


NO_DOTS = np.empty(0, np.float64)


@kernel
def add_inner_products(x: Floats, y: Floats, dots: Float64s) -> None:
    """Add <x, y> and <y, y> of 1-D arrays to `dots`.

    In every block of 1024, lane l of 16 adds the coordinates whose index is l modulo 16. Then the lanes are added one after
    another.
    """
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


def begun(size: int) -> Float64s:
    """Return an array to which `add_row` can write the inner products of all rows of `size` coordinates.

    The array begins with 64 float64 of scratch memory.
    """
    return np.empty(_SCRATCH + 2 * -(-size // ROW))


@kernel
def add_row(x: Floats, y: Floats, row: int, dots: Float64s) -> None:
    """Write <x, y> and <y, y> of row number `row`, of 512 values, to `dots`."""
    wide()
    lanes: Floats = viewed(dots[:_SCRATCH], np.float32)
    for i in range(64):
        p, q, r, s = y[i], y[64 + i], y[128 + i], y[192 + i]
        t, u, v, w = y[256 + i], y[320 + i], y[384 + i], y[448 + i]
        a = (x[i] * p + x[64 + i] * q) + (x[128 + i] * r + x[192 + i] * s)
        b = (x[256 + i] * t + x[320 + i] * u) + (x[384 + i] * v + x[448 + i] * w)
        lanes[i] = a + b
        lanes[64 + i] = ((p * p + q * q) + (r * r + s * s)) + ((t * t + u * u) + (v * v + w * w))
    if not put_row(lanes, row, dots):
        put_row_carefully(x, y, row, dots)


@inlined
def put_row(lanes: Floats, row: int, dots: Float64s) -> bool:
    """Write the inner products of a row, given 64 `lanes` of <x, y> followed by 64 lanes of <y, y>.

    Return False if the precision or range of float32 is not enough. The lanes of both products share one array, because LLVM
    vectorises loops that write to two arrays only after many overlap checks.
    """
    xy, yy = np.float64(fold(lanes[:64])), np.float64(fold(lanes[64:]))
    dots[_SCRATCH + row], dots[_SCRATCH + row + (dots.size - _SCRATCH) // 2] = xy, yy
    return bool(yy >= LEAST and yy < np.inf and abs(xy) < np.inf)


@kernel
def put_row_carefully(x: Floats, y: Floats, row: int, dots: Float64s) -> None:
    """Write the inner products that add_row writes, but compute them in float64."""
    place, lanes = _SCRATCH + row, dots[:_SCRATCH]
    dots[place] = _careful(x, y, lanes)
    dots[place + (dots.size - _SCRATCH) // 2] = _careful(y, y, lanes)


@kernel
def _careful(x: Floats, y: Floats, lanes: Float64s) -> float:
    """Return <x, y> of a row, added by the tree of a row. It is computed in float64, in which the products are exact."""
    for i in range(64):
        lanes[i] = _pair(x, y, i) + _pair(x, y, 128 + i)
    for i in range(64):
        lanes[i] += _pair(x, y, 256 + i) + _pair(x, y, 384 + i)
    return float(fold(lanes))


@inlined
def _pair(x: Floats, y: Floats, i: int) -> np.float64:
    """Return x[i] y[i] + x[i + 64] y[i + 64], computed in float64."""
    return np.float64(np.float64(x[i]) * np.float64(y[i]) + np.float64(x[i + 64]) * np.float64(y[i + 64]))


@kernel
def _add_rows(x: Floats, y: Floats, dots: Float64s) -> None:
    full = x.size // ROW * ROW
    for start in range(0, full, ROW):
        add_row(x[start : start + ROW], y[start : start + ROW], start // ROW, dots)
    if full < x.size:
        last = np.zeros((2, ROW), np.float32)
        copy_to(x[full:], last[0])
        copy_to(y[full:], last[1])
        add_row(last[0], last[1], full // ROW, dots)


@kernel
def _square_rows(x: Floats, sums: Float64s, lanes: Float64s) -> None:
    full = x.size // ROW * ROW
    for start in range(0, full, ROW):
        sums[start // ROW] = _careful(x[start : start + ROW], x[start : start + ROW], lanes)
    if full < x.size:
        last = np.zeros(ROW, np.float32)
        copy_to(x[full:], last)
        sums[full // ROW] = _careful(last, last, lanes)


def square_sum(x: Floats) -> float:
    """Return <x, x> of a flat array, summed by a tree in float64, or 0 if the array is empty."""
    if not x.size:
        return 0.0
    sums = np.empty(-(-x.size // ROW))
    _square_rows(x, sums, np.empty(_SCRATCH))
    return tree_of(sums)


def folded(dots: Float64s) -> tuple[float, float]:
    """Return <x, y> and <y, y>, the totals over all rows in `dots`. `dots` is overwritten."""
    rows = (dots.size - _SCRATCH) // 2
    return tree_of(dots[_SCRATCH : _SCRATCH + rows]), tree_of(dots[_SCRATCH + rows :])


def tree_products(x: Floats, y: Floats) -> tuple[float, float]:
    """Return <x, y> and <y, y> of arrays of equal size, summed by trees, or zeros for empty arrays."""
    if not x.size:
        return 0.0, 0.0
    dots = begun(x.size)
    _add_rows(x.reshape(-1), y.reshape(-1), dots)
    return folded(dots)


def inner_products(x: Floats, y: Floats) -> tuple[float, float]:
    """Return <x, y> and <y, y> of arrays of equal size, summed in float64 as add_inner_products describes."""
    dots = np.zeros(2)
    add_inner_products(x.reshape(-1), y.reshape(-1), dots)
    return float(dots[0]), float(dots[1])
