"""Loops over the ids of clusters. They assign values to clusters, compute means, and convert ids to values.

K - 1 ascending edges separate K clusters: cluster k holds the values from edge k - 1 up to, but not including, edge k. To find
the cluster of a value, the float32 is mapped to an integer that is ordered like the values. The upper 14 bits of this integer
are an index into a table. Each entry holds the number of edges that are at most the least float32 with these bits. The value is
then compared with the next edges.
"""

from __future__ import annotations

import numpy as np

from psnode.codecs.arrays import Bytes, Float64s, Floats, Int64s, Words
from psnode.codecs.kernels.jit import inlined, kernel
from psnode.codecs.kernels.llvm.instructions import viewed
from psnode.codecs.rng import BLOCK, HALF, fill

CELLS = 1 << 14
LANES = 8
_SHIFT = 18
_SIGN = 0x80000000

Ids = Bytes | Int64s


@inlined
def ordered(bits: np.uint32) -> np.uint32:
    """Return an integer, made of the bits of a float32, that is ordered like the float32 values."""
    negative = np.uint32(0) - (bits >> np.uint32(31))
    return np.uint32(bits ^ (negative | np.uint32(_SIGN)))


@kernel
def lookup(edges: Floats, table: Bytes) -> None:
    """Fill the table of `assign`: entry c is the number of `edges` (at most 255) whose `ordered` bits are at most c 2^18."""
    bits = viewed(edges, np.uint32)
    k = 0
    for cell in range(table.size):
        while k < bits.size and ordered(bits[k]) <= np.uint32(cell << _SHIFT):
            k += 1
        table[cell] = k


@kernel
def assign(x: Floats, edges: Floats, table: Bytes, codes: Bytes) -> None:
    """Write the cluster of every coordinate to `codes`. `edges`: all edges, followed by infinity. `table`: made by `lookup`."""
    bits = viewed(x, np.uint32)
    cells = np.empty(HALF, np.uint8)
    for start in range(0, x.size, HALF):
        part, words, there = x[start : start + HALF], bits[start : start + HALF], codes[start : start + HALF]
        for i in range(part.size):
            cells[i] = table[ordered(words[i]) >> np.uint32(_SHIFT)]
        for i in range(part.size):
            k = np.uint64(cells[i])
            while part[i] >= edges[k]:
                k += np.uint64(1)
            there[i] = k


@kernel
def totals(x: Floats, codes: Bytes, sums: Float64s, counts: Int64s) -> None:
    """Write the sum and the number of the coordinates in every cluster.

    Each sum is computed in eight lanes, which are added in order.
    """
    clusters = sums.size
    lane_sums, lane_counts = np.zeros((LANES, clusters), np.float64), np.zeros((LANES, clusters), np.int64)
    full = x.size // LANES * LANES
    for start in range(0, full, LANES):
        for lane in range(LANES):
            lane_sums[lane, codes[start + lane]] += np.float64(x[start + lane])
            lane_counts[lane, codes[start + lane]] += 1
    for i in range(full, x.size):
        lane_sums[i - full, codes[i]] += np.float64(x[i])
        lane_counts[i - full, codes[i]] += 1
    for k in range(clusters):
        sums[k] = 0
        counts[k] = 0
        for lane in range(LANES):
            sums[k] += lane_sums[lane, k]
            counts[k] += lane_counts[lane, k]


@kernel
def squares(x: Floats, codes: Bytes, sums: Float64s) -> None:
    """Write the sum of the squares of the coordinates in every cluster."""
    sums[:] = 0
    for i in range(x.size):
        sums[codes[i]] += np.float64(x[i]) * np.float64(x[i])


@kernel
def cells_of(codes: Bytes, sizes: Int64s, key: Words, stream: int, cells: Int64s) -> None:
    """Write the number of the bucket of every coordinate to `cells`.

    A coordinate of cluster k goes to bucket floor(w n / 2^32) of the n = sizes[k] buckets of the cluster. The buckets of all
    clusters are numbered consecutively. w is the random word of the coordinate: for coordinate i, it is entry i mod 256 of the
    output of rng.fill for the calls 64 b .. 64 b + 63, where b = floor(i / 256).
    """
    first = np.zeros(sizes.size, np.int64)
    for k in range(1, sizes.size):
        first[k] = first[k - 1] + sizes[k - 1]
    words = np.empty(HALF, np.uint32)
    for start in range(0, codes.size, HALF):
        fill(words, key, stream, start // HALF * BLOCK)
        part, there = codes[start : start + HALF], cells[start : start + HALF]
        for i in range(part.size):
            there[i] = first[part[i]] + np.int64((np.uint64(words[i]) * np.uint64(sizes[part[i]])) >> np.uint64(32))


@kernel
def bucket_totals(x: Floats, cells: Ids, sums: Float64s, counts: Int64s) -> None:
    """Write the sum and the number of the coordinates in every bucket."""
    sums[:] = 0
    counts[:] = 0
    for i in range(x.size):
        sums[cells[i]] += np.float64(x[i])
        counts[cells[i]] += 1


@kernel
def write(codes: Ids, values: Floats, out: Floats) -> None:
    """Write values[codes] to `out`."""
    for i in range(out.size):
        out[i] = values[codes[i]]


@kernel
def add(codes: Ids, values: Floats, out: Floats) -> None:
    """Add values[codes] to `out`."""
    for i in range(out.size):
        out[i] += values[codes[i]]
