"""From float32 to rows of cells of a channel, to rows of LLRs, and from decisions back to float32.

A cell is a uint16: bits 0..9 the cell of x, bits 10 and up the bits of the levels decided so far, so that it is the index into
the tables of the level that comes next. The reader, who has no x, keeps the decided bits alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from psnode.codecs.base import Floats
from psnode.codecs.kernels.jit import kernel
from psnode.codecs.polarcodes.channel import CELLS, CELLS_PER_UNIT
from psnode.codecs.polarcodes.lanes import I16, LANES, Llrs, Masks, as_mask, load, row_at, splat

Cells = npt.NDArray[np.uint16]

CELL_BITS = 10
_ROW = ir.VectorType(I16, LANES)
_LARGEST = np.float32(np.finfo(np.float32).max)


def _mark(typing: Any, cells: Any, row: Any, word: Any, value: Any) -> Any:
    """Set the bits of `value` in the lanes of the row that are in `word`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        cells, row, word, value = arguments
        address = row_at(context, builder, signature.args[0], cells, row, _ROW)
        single = builder.insert_element(ir.Constant(_ROW, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
        lanes = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        values = builder.shuffle_vector(single, ir.Constant(_ROW, ir.Undefined), lanes)
        marked = builder.or_(load(builder, address), builder.select(as_mask(builder, word), values, splat(_ROW, 0)))
        builder.store(marked, address).align = 2
        return context.get_dummy_value()

    return types.void(cells, types.intp, types.uint32, types.uint16), generate


_mark_row = cast(Callable[[Cells, int, np.uint32, np.uint16], None], intrinsic(_mark))


@kernel
def cells_of(x: Floats, scale: float, cells: Cells, lanes: int) -> None:
    """The cells of x / scale, `lanes` of each row of `cells`; the middle where x ends or scale is 0."""
    factor = CELLS_PER_UNIT / scale if scale > 0 else 0.0
    middle, top = 0.5 * CELLS, CELLS - 0.5
    if lanes == LANES:
        for i in range(x.size):
            cells[i] = np.uint16(np.int32(min(max(np.float64(x[i]) * factor + middle, 0.0), top)))
        cells[x.size :] = CELLS // 2
        return
    cells[:] = CELLS // 2
    for i in range(x.size):
        cells[i // lanes * LANES + i % lanes] = np.uint16(np.int32(min(max(np.float64(x[i]) * factor + middle, 0.0), top)))


@kernel
def look_up_llrs(table: Llrs, index: Cells, llrs: Llrs) -> None:
    """The second half of `llrs`, of every row: table[index]."""
    target = llrs[index.size :]
    for i in range(index.size):
        target[i] = table[index[i]]


@kernel
def look_up_priors(table: Llrs, index: Cells, shift: int, llrs: Llrs) -> None:
    """The second half of `llrs`, of every row: table[index / 2^shift]."""
    target = llrs[index.size :]
    for i in range(index.size):
        target[i] = table[index[i] >> np.uint16(shift)]


@kernel
def mark(cells: Cells, bits: Masks, shift: int) -> None:
    """Set bit `shift` in every lane whose bit is 1."""
    value = np.uint16(1 << shift)
    for row in range(bits.size):
        _mark_row(cells, row, bits[row], value)


@kernel
def values_of(symbols: Cells, shift: int, count: int, half: np.float32, out: Floats, lanes: int) -> None:
    """out = (2 (symbol / 2^shift) - (count - 1)) half, rounded once, cut off at the largest float32; `count` symbols."""
    offset = np.int32(count - 1)
    bits = np.uint16(shift)
    for i in range(out.size):
        at = i if lanes == LANES else i // lanes * LANES + i % lanes
        value = np.float32(2 * np.int32(symbols[at] >> bits) - offset) * half
        out[i] = min(max(value, -_LARGEST), _LARGEST)


@kernel
def inner_products(x: Floats, symbols: Cells, shift: int, count: int, lanes: int) -> tuple[float, float]:
    """<x, y> and <y, y> with y = 2 (symbol / 2^shift) - (count - 1), summed in 32 lanes one after the other."""
    offset = np.int32(count - 1)
    bits = np.uint16(shift)
    sums, squares = np.zeros(LANES), np.zeros(LANES)
    full = x.size // LANES * LANES if lanes == LANES else 0
    for start in range(0, full, LANES):
        part, row = x[start : start + LANES], symbols[start : start + LANES]
        for j in range(LANES):
            y = np.float64(2 * np.int32(row[j] >> bits) - offset)
            sums[j] += np.float64(part[j]) * y
            squares[j] += y * y
    xy, yy = 0.0, 0.0
    for j in range(LANES):
        xy += sums[j]
        yy += squares[j]
    for i in range(full, x.size):
        at = i if lanes == LANES else i // lanes * LANES + i % lanes
        y = np.float64(2 * np.int32(symbols[at] >> bits) - offset)
        xy += np.float64(x[i]) * y
        yy += y * y
    return xy, yy


@kernel
def energy(x: Floats) -> float:
    """<x, x>, summed in 32 lanes one after the other."""
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
