"""Norms of arrays and of buckets, summed in one pass in a fixed order. The pass also detects values that are not finite.

For an L2 norm, the squares of 512 coordinates at a time are added in float32 by a tree. Lane l of 64 adds the coordinates whose
index is l modulo 64. The 64 lanes are then reduced to 16, and these to 1. The sums of 512 are added in float64. If the total is
outside 2^-120..2^120, it is computed again in float64, coordinate by coordinate.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from psnode.codecs.arrays import Float64s, Floats, Words32, readonly
from psnode.codecs.kernels.jit import inlined, kernel
from psnode.codecs.kernels.llvm.instructions import viewed
from psnode.errors import PayloadError

CHUNK = 512
NOT_FINITE = -1.0
_LARGEST = float(np.finfo(np.float32).max)
SAFE_LOW = 2.0**-120
SAFE_HIGH = 2.0**120
_SCRATCH = 1024


@inlined
def fold_16(v: Floats | Float64s) -> Any:
    """Return the sum of the first 16 values of `v`, added pairwise in their own type. Some of these values are overwritten."""
    for i in range(8):
        v[i] = v[2 * i] + v[2 * i + 1]
    for i in range(4):
        v[i] = v[2 * i] + v[2 * i + 1]
    return (v[0] + v[1]) + (v[2] + v[3])


@inlined
def fold(v: Floats | Float64s) -> Any:
    """Return the sum of the first 64 values of `v`, in their own type. Some of these values are overwritten."""
    for i in range(16):
        v[i] = (v[i] + v[16 + i]) + (v[32 + i] + v[48 + i])
    return fold_16(v)


@inlined
def inner_512(v: Floats, w: Floats, lanes: Floats) -> np.float32:
    """Return the sum of v[i] w[i] over 512 coordinates, added by the tree. `lanes`: 64 float32 of scratch memory."""
    for i in range(64):
        a = (v[i] * w[i] + v[64 + i] * w[64 + i]) + (v[128 + i] * w[128 + i] + v[192 + i] * w[192 + i])
        b = (v[256 + i] * w[256 + i] + v[320 + i] * w[320 + i]) + (v[384 + i] * w[384 + i] + v[448 + i] * w[448 + i])
        lanes[i] = a + b
    return np.float32(fold(lanes))


@inlined
def _has_nonzero(v: Floats) -> bool:
    found = False
    for i in range(v.size):
        found |= v[i] != 0
    return found


@inlined
def _careful_l2(v: Floats) -> float:
    total = 0.0
    top = 0.0
    for i in range(v.size):
        a = abs(np.float64(v[i]))
        if not a <= _LARGEST:
            return NOT_FINITE
        total += a * a
        if a > top:
            top = a
    return float(min(max(np.sqrt(total), top), _LARGEST))


@inlined
def top_bits(bits: Words32, top: np.uint32) -> np.uint32:
    """Return the larger of `top` and the largest magnitude among float32 values given by their bits.

    Magnitudes are integers: the bits without the sign.
    """
    for i in range(bits.size):
        top = max(top, np.uint32(bits[i] & np.uint32(0x7FFFFFFF)))
    return top


@kernel
def magnitude_of(top: np.uint32) -> float:
    """Return the float32 magnitude whose bits are `top`, or NOT_FINITE if it is not finite."""
    if top >= np.uint32(0x7F800000):
        return NOT_FINITE
    cell = np.empty(1, np.uint32)
    cell[0] = top
    return float(viewed(cell, np.float32)[0])


@kernel
def max_norm(v: Floats) -> float:
    """Return the largest magnitude in `v`, or NOT_FINITE if a value is not finite."""
    return float(magnitude_of(top_bits(viewed(v, np.uint32), np.uint32(0))))


@kernel
def l2_norm(v: Floats, scratch: Floats) -> float:
    """Return the L2 norm of `v` as a float64, at most the largest float32, or NOT_FINITE. `scratch`: 576 float32."""
    total = 0.0
    full = v.size // CHUNK * CHUNK
    for start in range(0, full, CHUNK):
        part = v[start : start + CHUNK]
        total += np.float64(inner_512(part, part, scratch))
    if full < v.size:
        rest = scratch[64:]
        last = v[full:]
        for i in range(CHUNK):
            rest[i] = 0
        for i in range(last.size):
            rest[i] = last[i]
        total += np.float64(inner_512(rest, rest, scratch))
    if SAFE_LOW <= total <= SAFE_HIGH:
        return float(np.sqrt(total))
    if total == 0 and not _has_nonzero(v):
        return 0.0
    return float(_careful_l2(v))


@kernel
def norms_of(x: Floats, bucket: int, squared: bool, norms: Floats) -> bool:
    """Write the norms of the buckets of `x`, and return True if all values are finite.

    A norm is the L2 norm if `squared`, else the largest magnitude.
    """
    scratch = np.empty(CHUNK + 64, np.float32)
    for b in range(norms.size):
        members = x[b * bucket : (b + 1) * bucket]
        norm = l2_norm(members, scratch) if squared else max_norm(members)
        if norm == NOT_FINITE:
            return False
        norms[b] = norm
    return True


def norm_of(values: Floats, owner: str) -> float:
    """Return the L2 norm of 1-D `values`, limited to the largest float32.

    Raise PayloadError, naming `owner`, if a value is not finite.
    """
    found = l2_norm(readonly(values), np.empty(_SCRATCH, np.float32))
    if found == NOT_FINITE:
        raise PayloadError(f"{owner}: a value is not finite")
    return found


def norm_of_buckets(largest: Floats, bucket: int, size: int) -> float:
    """Return an upper bound of the L2 norm of `size` values, given a bound of the magnitudes in every bucket, `largest`."""
    last = size - bucket * (largest.size - 1)
    whole = l2_norm(readonly(np.ascontiguousarray(largest[:-1], np.float32)), np.empty(_SCRATCH, np.float32))
    return math.hypot(math.sqrt(bucket) * whole, math.sqrt(last) * float(largest[-1]))
