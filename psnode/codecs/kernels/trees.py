"""Sums over a whole input by trees of 512, in an order that any number of processors can keep.

A row of 512 float32 (the last row is padded with zeros) is summed in float32 by the tree of `fold`. If the sum is not finite,
2^-10 times the values are summed instead, which gives 2^-10 times the sum. Sums of rows are float64. The same tree adds them
512 at a time (the last group is padded with zeros) until one sum is left.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from psnode.codecs.arrays import Float64s, Floats
from psnode.codecs.kernels.jit import inlined, kernel
from psnode.codecs.kernels.norms import fold

ROW = 512
DOWN, UP = np.float32(2.0**-10), 2.0**10


@inlined
def sum_512(v: Floats, lanes: Floats) -> np.float32:
    """Return the sum of a row, added by the tree of psnode.codecs.kernels.norms. `lanes`: 64 float32 of scratch memory."""
    for i in range(64):
        a = (v[i] + v[64 + i]) + (v[128 + i] + v[192 + i])
        b = (v[256 + i] + v[320 + i]) + (v[384 + i] + v[448 + i])
        lanes[i] = a + b
    return np.float32(fold(lanes))


@kernel
def row_sum(v: Floats, count: int, scratch: Floats) -> float:
    """Return the sum of the first `count` of 512 values. It is not finite if one of them is not.

    `scratch`: 576 float32, which must not overlap with `v`.
    """
    rest = scratch[64:]
    for i in range(ROW):
        rest[i] = v[i] if i < count else np.float32(0)
    found = sum_512(rest, scratch)
    if np.isfinite(found):
        return float(found)
    for i in range(ROW):
        rest[i] *= DOWN
    return UP * float(sum_512(rest, scratch))


@kernel
def count_512(conditions: npt.NDArray[np.bool_], count: int) -> float:
    """Return the number of true values among the first `count` of 512 values. The number is exact."""
    found = np.uint32(0)
    if count == ROW:
        for i in range(64):
            of_lane = np.uint8(0)
            for k in range(0, ROW, 64):
                of_lane = np.uint8(of_lane + np.uint8(conditions[k + i]))
            found = np.uint32(found + np.uint32(of_lane))
        return float(found)
    for i in range(count):
        found = np.uint32(found + np.uint32(conditions[i]))
    return float(found)


@inlined
def _tree_512(sums: Float64s, start: int, count: int, row: Float64s) -> float:
    """Return the sum of sums[start : start + count], where count <= 512. `row`: 512 float64 of scratch memory."""
    if count <= 64:  # the tree would add only zeros to these sums
        for i in range(64):
            row[i] = sums[start + i] if i < count else 0.0
    else:
        for i in range(ROW):
            row[i] = sums[start + i] if i < count else 0.0
        for i in range(64):
            a = (row[i] + row[64 + i]) + (row[128 + i] + row[192 + i])
            b = (row[256 + i] + row[320 + i]) + (row[384 + i] + row[448 + i])
            row[i] = a + b
    return float(fold(row))


@kernel
def tree_of(sums: Float64s) -> float:
    """Return the total of the sums of one or more rows. It is never -0. `sums` is overwritten."""
    if sums.size == 1:
        return float(sums[0] + 0.0)
    row, left = np.empty(ROW, np.float64), sums.size
    while left > 1:
        groups = (left + ROW - 1) // ROW
        for g in range(groups):
            sums[g] = _tree_512(sums, ROW * g, min(ROW, left - ROW * g), row)
        left = groups
    return float(sums[0] + 0.0)
