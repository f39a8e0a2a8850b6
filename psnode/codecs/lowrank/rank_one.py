"""Sums of rank-one matrices, out = sum_k left[k] right[k]^T or out += weight * (this sum), without a dense temporary array.

Each entry is the float32 sum of the float32 products left[k, i] * right[k, j] in ascending k. `add_terms` multiplies this sum
by the weight and adds the product to the target. The operations and their order are the same on every machine. `add_terms`
gives the same result as `write_terms` followed by a multiplication and an addition.
"""

from __future__ import annotations

import numpy as np

from psnode.codecs.arrays import Floats
from psnode.codecs.kernels.jit import inlined, kernel

_BLOCK = 1024
_LARGEST = float(np.finfo(np.float32).max)
_SAFE = _LARGEST * (1 - 2.0**-20)  # sums of products of float32, each rounded


@inlined
def _row(left: Floats, right: Floats, i: int, start: int, stop: int, total: Floats) -> None:
    """Write columns start..stop-1 of row i of the sum to `total`. The first three terms are added in one sweep."""
    rank = left.shape[0]
    a = left[0, i]
    first = right[0, start:stop]
    n = stop - start
    if rank == 1:
        for j in range(n):
            total[j] = a * first[j]
        return
    b = left[1, i]
    second = right[1, start:stop]
    if rank == 2:
        for j in range(n):
            total[j] = a * first[j] + b * second[j]
        return
    c = left[2, i]
    third = right[2, start:stop]
    for j in range(n):
        total[j] = (a * first[j] + b * second[j]) + c * third[j]
    for k in range(3, rank):
        d = left[k, i]
        other = right[k, start:stop]
        for j in range(n):
            total[j] += d * other[j]


@kernel
def write_terms(left: Floats, right: Floats, out: Floats) -> None:
    """Overwrite `out` (m, n) with the sum of r terms, given by their factors left (r, m) and right (r, n)."""
    rank, m = left.shape
    n = right.shape[1]
    if rank == 0:
        out[:] = np.float32(0)
        return
    for start in range(0, n, _BLOCK):
        stop = min(start + _BLOCK, n)
        for i in range(m):
            _row(left, right, i, start, stop, out[i, start:stop])


@kernel
def add_terms(left: Floats, right: Floats, out: Floats, weight: np.float32) -> None:
    """Add `weight` times the sum of r terms to `out` (m, n).

    The terms are given by their factors left (r, m) and right (r, n).
    """
    rank, m = left.shape
    n = right.shape[1]
    if rank == 0:
        return
    total = np.empty(_BLOCK, np.float32)
    for start in range(0, n, _BLOCK):
        stop = min(start + _BLOCK, n)
        for i in range(m):
            _row(left, right, i, start, stop, total)
            row = out[i, start:stop]
            for j in range(stop - start):
                row[j] += weight * total[j]


def may_overflow(left: Floats, right: Floats) -> bool:
    """Return True if the sum of r terms or a partial sum might leave float32's range, given left (r, m) and right (r, n)."""
    if not left.size or not right.size:
        return False
    tops = np.abs(left).max(axis=1).astype(np.float64) * np.abs(right).max(axis=1).astype(np.float64)
    return bool(tops.sum() > _SAFE)


@kernel
def write_saturated(left: Floats, right: Floats, out: Floats) -> None:
    """Overwrite `out` as write_terms does, but compute in float64 and limit the sums to float32's range.

    This serves noisy factors of very large arrays.
    """
    rank, m = left.shape
    for i in range(m):
        for j in range(right.shape[1]):
            total = 0.0
            for k in range(rank):
                total += np.float64(left[k, i]) * np.float64(right[k, j])
            out[i, j] = np.float32(min(max(total, -_LARGEST), _LARGEST))
