"""Conversion of float32 to rows of cells of a channel, of cells to rows of LLRs, and of decisions back to float32.

A cell is a uint16. Bits 0..9 are the number of the cell in which x lies. Bits 10 and up are the bits of the levels decided so
far, so that a cell is an index into the tables of the next level. The reader, which does not know x, keeps only the decided
bits.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from psnode.codecs.arrays import Floats, Int32s
from psnode.codecs.kernels.cache_hints import wide
from psnode.codecs.kernels.jit import inlined, kernel
from psnode.codecs.kernels.llvm.instructions import instructions
from psnode.codecs.kernels.llvm.lookups import pick
from psnode.codecs.kernels.llvm.operations import select, spread, unpacked
from psnode.codecs.polarcodes.lanes import Llrs, Masks
from psnode.codecs.polarcodes.rate_channel import CELLS, CELLS_PER_UNIT
from psnode.codecs.polarcodes.vectors import LANES, load_row, store_row

Cells = npt.NDArray[np.uint16]

CELL_BITS: int = np.int64(10)  # type: ignore[assignment]  # a plain 10 would be a type of its own in Numba
_LARGEST = np.float32(np.finfo(np.float32).max)


@instructions
def mark_row(cells: Cells, row: int, word: np.uint32, value: np.uint16) -> None:
    """Set the bits of `value` in those lanes of the row whose bit in `word` is 1."""
    store_row(cells, row, load_row(cells, row) | select(unpacked(word), spread(value, LANES), 0))


@instructions
def prior_row(table: Llrs, cells: Cells, row: int, shift: np.uint16, llrs: Llrs, target: int) -> None:
    """Write table[cells / 2^shift], for the cells of row `row`, to row `target` of `llrs`. The table has 32 entries."""
    store_row(llrs, target, pick(table, load_row(cells, row) >> spread(shift, LANES), LANES))


@inlined
def _limited(value: np.float32, least: np.float32, most: np.float32) -> np.float32:
    """Return the number from `least` to `most` that is nearest to `value`. With min and max, Numba would compile longer."""
    return least if value < least else (most if value > most else value)


@inlined
def _cell(value: np.float32) -> np.uint16:
    """Return the number of the cell of `value`, which is in units of cells. Floats are not added: sums might be rounded."""
    inside = _limited(value, np.float32(-CELLS // 2), np.float32(CELLS // 2 - 0.5))
    whole = np.int32(inside)
    return np.uint16(whole - np.int32(np.float32(whole) > inside) + np.int32(CELLS // 2))


@kernel
def cells_of(x: Floats, scale: float, cells: Cells, lanes: int) -> None:
    """Write the cells of x / scale to `lanes` entries of each row of `cells`.

    After the end of x, and everywhere if `scale` is 0, the middle cell is written.
    """
    wide()
    factor = np.float32(CELLS_PER_UNIT / scale) if scale > 0 else np.float32(0)
    for i in range(x.size):
        cells[i] = _cell(x[i] * factor)
    for i in range(x.size, cells.size):
        cells[i] = np.uint16(CELLS // 2)
    if lanes < LANES:
        for row in range(cells.size // LANES - 1, -1, -1):
            for j in range(lanes - 1, -1, -1):
                cells[LANES * row + j] = cells[lanes * row + j]
            for j in range(lanes, LANES):
                cells[LANES * row + j] = np.uint16(CELLS // 2)


@inlined
def close_up(cells: Cells, lanes: int) -> None:
    """Move the first `lanes` cells of all rows together, so that no gaps remain between them."""
    if lanes < LANES:
        for row in range(1, cells.size // LANES):
            for j in range(lanes):
                cells[lanes * row + j] = cells[LANES * row + j]


@inlined
def look_up_llrs(table: Llrs, index: Cells, llrs: Llrs) -> None:
    """Write table[index] for every entry of `index` to the second half of `llrs`."""
    target = llrs[index.size :]
    for i in range(index.size):
        target[i] = table[index[i]]


@kernel
def look_up_priors(table: Llrs, index: Cells, shift: int, llrs: Llrs) -> None:
    """Write table[index / 2^shift] for every row of `index` to the second half of `llrs`. The table has 32 entries."""
    rows = index.size // LANES
    bits = np.uint16(shift)
    for row in range(rows):
        prior_row(table, index, row, bits, llrs, rows + row)


@kernel
def mark(cells: Cells, bits: Masks, shift: int) -> None:
    """Set bit `shift` of the cells in every lane whose bit in `bits` is 1."""
    value = np.uint16(1 << shift)
    for row in range(cells.size // LANES):
        mark_row(cells, row, bits[row], value)


@kernel
def values_of(symbols: Cells, shift: int, count: int, half: np.float32, out: Floats) -> None:
    """Write (2 (symbol / 2^shift) - (count - 1)) times `half` to `out`, for each symbol.

    Values are rounded once and limited to the range of float32. There are `count` different symbols.
    """
    wide()
    offset = np.int32(count - 1)
    bits = np.uint16(shift)
    for i in range(out.size):
        value = np.float32(np.int32(np.int32(2) * np.int32(symbols[i] >> bits) - offset)) * half
        out[i] = _limited(value, -_LARGEST, _LARGEST)


@kernel
def inner_products(
    x: Floats, scale: float, symbols: Cells, shift: int, count: int, lanes: int, sums: Floats, squares: Int32s
) -> tuple[float, float]:
    """Return <x, y> / scale and <y, y>, where y = 2 (symbol / 2^shift) - (count - 1) for each symbol.

    The sums of 32 lanes are added one after another. With fewer `lanes` than 32, there is one sequential sum. For at most 2^16
    values, the float32 sum of a lane has a relative error of a millionth, and the squares are exact. `sums` and `squares`:
    scratch memory for 32 numbers each.
    """
    wide()
    offset, factor = np.int32(count - 1), np.float32(1 / scale)
    bits = np.uint16(shift)
    for j in range(LANES):
        sums[j] = 0
        squares[j] = 0
    full = x.size // LANES * LANES if lanes == LANES else 0
    for start in range(0, full, LANES):
        part, row = x[start : start + LANES], symbols[start : start + LANES]
        for j in range(LANES):
            y = np.int32(np.int32(2) * np.int32(row[j] >> bits) - offset)
            sums[j] += part[j] * factor * np.float32(y)
            squares[j] += y * y
    xy, yy = 0.0, 0.0
    for j in range(LANES):
        xy += np.float64(sums[j])
        yy += np.float64(squares[j])
    for i in range(full, x.size):
        value = np.float64(2 * np.int32(symbols[i] >> bits) - offset)
        xy += np.float64(x[i]) * np.float64(factor) * value
        yy += value * value
    return xy, yy


@kernel
def energy(x: Floats) -> float:
    """Return <x, x>. It is summed in 32 lanes, whose sums are then added one after another."""
    sums = np.zeros(LANES)
    full = x.size // LANES * LANES
    for start in range(0, full, LANES):
        part = x[start : start + LANES]
        for j in range(LANES):
            sums[j] += np.float64(part[j]) * np.float64(part[j])
    total = 0.0
    for j in range(LANES):
        total += sums[j]
    for i in range(full, x.size):
        total += np.float64(x[i]) * np.float64(x[i])
    return total
