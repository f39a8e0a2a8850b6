"""The loops of linear sketches. They add coordinates to hashed cells with hashed signs, and estimate coordinates from the cells.

Every coordinate has a random word in each row. In row j, the word of coordinate i of block b = i div 256 is entry i mod 256 of
the output of rng.fill for the calls 64 b .. 64 b + 63 of the stream `stream` + 256 j. The lowest bit of the word is the sign
(1: minus). The other 31 bits, as a fraction of 2^31, times the number of columns give the cell.
"""

from __future__ import annotations

import numpy as np

from psnode.codecs.arrays import Float64s, Floats, Words, Words32
from psnode.codecs.kernels.jit import inlined, kernel
from psnode.codecs.kernels.llvm.instructions import viewed
from psnode.codecs.rng import BLOCK, HALF, fill


@inlined
def _places(words: Words32, columns: int, start: int, places: Words32, signs: Words32) -> None:
    """Write the cells and the sign bits for 256 `words`. `start` is the number of the row's first cell."""
    wide = np.uint64(columns)
    for i in range(HALF):
        places[i] = np.uint32(((np.uint64(words[i] >> np.uint32(1)) * wide) >> np.uint64(31)) + np.uint64(start))
    for i in range(HALF):
        signs[i] = words[i] << np.uint32(31)


@kernel
def insert(x: Floats, rows: int, key: Words, stream: int, cells: Float64s) -> None:
    """Add the coordinates of `x` to `cells` (rows * columns), in ascending order of coordinates."""
    columns = cells.size // rows
    words, places, signs = np.empty(HALF, np.uint32), np.empty(HALF, np.uint32), np.empty(HALF, np.uint32)
    signed = np.empty(HALF, np.uint32)
    values = signed.view(np.float32)
    bits = viewed(x, np.uint32)
    for start in range(0, x.size, HALF):
        part = bits[start : start + HALF]
        for row in range(rows):
            fill(words, key, stream + 256 * row, start // HALF * BLOCK)
            _places(words, columns, row * columns, places, signs)
            for i in range(part.size):
                signed[i] = part[i] ^ signs[i]
            for i in range(part.size):
                cells[places[i]] += np.float64(values[i])


@inlined
def _median(table: Floats, rows: int, result: Floats) -> None:
    """Write the median of every column of `table`. The columns are sorted by transpositions of neighbouring rows."""
    for turn in range(rows):
        for row in range(turn % 2, rows - 1, 2):
            upper, lower = table[row], table[row + 1]
            for i in range(HALF):
                a = upper[i]
                b = lower[i]
                upper[i] = min(a, b)
                lower[i] = max(a, b)
    middle, before = table[rows // 2], table[(rows - 1) // 2]
    for i in range(HALF):
        result[i] = middle[i]
    if rows % 2 == 0:
        for i in range(HALF):
            result[i] = np.float32(0.5) * before[i] + np.float32(0.5) * middle[i]


@inlined
def _mean(table: Floats, rows: int, sums: Float64s, result: Floats) -> None:
    sums[:] = 0
    for row in range(rows):
        line = table[row]
        for i in range(HALF):
            sums[i] += np.float64(line[i])
    for i in range(HALF):
        result[i] = np.float32(sums[i] / np.float64(rows))


@kernel
def estimate(cells: Floats, rows: int, key: Words, stream: int, median: bool, out: Floats, weight: np.float32, add: bool) -> None:
    """Write an estimate of every coordinate to `out`: the median or the mean, over all rows, of its cell times its sign.

    If `add`, `weight` times the estimates are added to `out` instead.
    """
    columns = cells.size // rows
    words, places, signs = np.empty(HALF, np.uint32), np.empty(HALF, np.uint32), np.empty(HALF, np.uint32)
    table, sums, result = np.empty((rows, HALF), np.float32), np.empty(HALF, np.float64), np.empty(HALF, np.float32)
    bits, found = cells.view(np.uint32), table.view(np.uint32)
    for start in range(0, out.size, HALF):
        for row in range(rows):
            fill(words, key, stream + 256 * row, start // HALF * BLOCK)
            _places(words, columns, row * columns, places, signs)
            line = found[row]
            for i in range(HALF):
                line[i] = bits[places[i]] ^ signs[i]
        if median:
            _median(table, rows, result)
        else:
            _mean(table, rows, sums, result)
        there = out[start : start + HALF]
        if add:
            for i in range(there.size):
                there[i] += weight * result[i]
        else:
            for i in range(there.size):
                there[i] = result[i]
