"""One bit per coordinate in buckets: the mean magnitudes of the buckets, and the conversion of signs to one of two values.

Bit i mod 8 of byte i // 8 belongs to coordinate i, and is 1 if the coordinate is negative. A coin decides the sign of a zero
(0.0 or -0.0), so that a coordinate that is always zero does not drift in one direction. The coin of coordinate i is bit i mod
32 of word i // 32 of the stream, with words in the order in which `fill` writes them.

Sums are computed as in psnode.codecs.kernels.trees. The first row of a bucket begins with the bucket.
"""

from __future__ import annotations

import numpy as np

from psnode.codecs.arrays import Bytes, Float64s, Floats
from psnode.codecs.kernels.cache_hints import AHEAD, copy_to, fetch_row_to_write, wide
from psnode.codecs.kernels.jit import inlined, kernel
from psnode.codecs.kernels.llvm.instructions import viewed
from psnode.codecs.kernels.norms import fold
from psnode.codecs.kernels.rows import uncounted, unpack_signs
from psnode.codecs.kernels.trees import ROW, row_sum, tree_of

_LARGEST = float(np.finfo(np.float32).max)


@kernel
def _sum(v: Floats, row: Floats, scratch: Floats) -> float:
    """Return the sum of |v| for at most 512 finite values. `row`: 512 float32 of scratch memory. `scratch`: 576 float32."""
    for i in range(v.size):
        row[i] = abs(v[i])
    if v.size <= 64:  # the tree would add only zeros to these values
        for i in range(64):
            scratch[i] = row[i] if i < v.size else np.float32(0)
        found = float(fold(scratch))
        if np.isfinite(found):
            return found
    return row_sum(row, v.size, scratch)


@inlined
def _mean(sums: Float64s, size: int) -> float:
    """Return the mean of `size` magnitudes, at most the largest float32, given the sums of rows. `sums` is overwritten."""
    return float(min(tree_of(sums) / size, _LARGEST))


@kernel
def means_by_rows(sums: Float64s, size: int, bucket: int, means: Floats) -> None:
    """Write the mean magnitudes of buckets of whole rows, given the `sums` of the rows, which are overwritten."""
    rows = bucket // ROW
    for b in range(means.size):
        means[b] = _mean(sums[rows * b : rows * b + rows], min(bucket, size - bucket * b))


@kernel
def means_of(x: Floats, bucket: int, means: Floats) -> None:
    """Write the mean magnitudes of the buckets of `x`, which is finite. Buckets may have any size."""
    wide()
    row, scratch, source = np.empty(ROW, np.float32), np.empty(ROW + 64, np.float32), uncounted(x)
    sums = np.empty((min(bucket, x.size) + ROW - 1) // ROW, np.float64)
    for b in range(means.size):
        v = source[bucket * b : min(bucket * b + bucket, x.size)]
        rows = (v.size + ROW - 1) // ROW
        for at in range(rows):
            sums[at] = _sum(v[ROW * at : ROW * at + ROW], row, scratch)
        means[b] = _mean(sums[:rows], v.size)


@kernel
def apply(bits: Bytes, bucket: int, low: Floats, high: Floats, source: Floats, out: Floats) -> None:
    """Write source + level to `out`, or only the level if `source` is empty.

    The level of coordinate i is low[i // bucket] where bit i is 1, else high[i // bucket].
    """
    wide()
    room, last, full = np.empty(ROW // 4, np.float32), np.zeros(ROW // 8, np.uint8), out.size // ROW * ROW
    signs, target = viewed(uncounted(room), np.uint8), uncounted(out)
    words = viewed(uncounted(viewed(bits[: full // 8], np.float32)), np.uint32)
    copies = source.size > 0 and source.ctypes.data != out.ctypes.data
    for start in range(0, out.size, ROW):
        fetch_row_to_write(out, start + AHEAD)
        end, at, b = min(start + ROW, out.size), start, start // bucket
        if start < full:
            unpack_signs(words[start // 32 :], signs)
        else:
            copy_to(bits[full // 8 :], last)
            unpack_signs(viewed(last, np.uint32), signs)
        if copies:
            copy_to(source[start:end], target[start:end])
        while at < end:
            stop, minus, plus = min((b + 1) * bucket, end), low[b], high[b]
            part, negative = target[at:stop], signs[at - start :]
            if source.size:
                for i in range(part.size):
                    part[i] += minus if negative[i] else plus
            else:
                for i in range(part.size):
                    part[i] = minus if negative[i] else plus
            at, b = stop, b + 1
