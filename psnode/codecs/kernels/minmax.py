"""The loops of minmax: the extremes in one pass, then 2048 coordinates at a time, in rows of 512."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from psnode.codecs.arrays import Bytes, Codes, Floats, Words32
from psnode.codecs.kernels.dots import Lost, add_inner_products
from psnode.codecs.kernels.jit import inlined, kernel
from psnode.codecs.kernels.memory import AHEAD, copy_to, fetch_row_to_write, wide
from psnode.codecs.kernels.parts import BEGIN, NOT_FINITE, STRETCH, PartTable, add_parts
from psnode.codecs.kernels.planes import pack_row, pack_tail, unpack_row, unpack_tail
from psnode.codecs.kernels.stochastic import ROW, Rule, round_rows
from psnode.codecs.rng import HALF, Draws

BLOCK = 4 * ROW
_CELLS = ROW // 4
_MAGNITUDE = 0x7FFFFFFF
_INFINITE = 0x7F800000


class Levels(NamedTuple):
    """The value of code c is (base + c step) back."""

    base: np.float32
    step: np.float32
    back: np.float32


class Cells(NamedTuple):
    """Codes of an array: packed, full rows and the rest apart, or one a byte. Those not wanted are empty."""

    packed: Words32
    tail: Bytes
    codes: Codes


@inlined
def ordered(bits: np.int32) -> np.int32:
    """An integer that is ordered as the float32 with `bits` is; its own inverse."""
    return np.int32(bits ^ ((bits >> np.int32(31)) & np.int32(_MAGNITUDE)))


@kernel
def extremes(x: Floats, parts: PartTable, ends: Floats) -> bool:
    """ends = least and greatest value of `x`; whether all are finite.

    `parts` are added to their target, the memory of `x`, beforehand; False if one is not finite.
    """
    wide()
    bits = x.view(np.int32)
    low, high = np.int32(_MAGNITUDE), np.int32(~_MAGNITUDE)
    cursor = BEGIN
    for start in range(0, x.size, STRETCH):
        if len(parts) > 1:
            cursor = add_parts(parts, cursor, start, min(start + STRETCH, x.size))
            if cursor == NOT_FINITE:
                return False
        values = bits[start : start + STRETCH]
        for i in range(values.size):
            place = ordered(values[i])
            low = min(low, place)
            high = max(high, place)
    cells = ends.view(np.int32)
    cells[0], cells[1] = ordered(low), ordered(high)
    return bool(np.int32(~_INFINITE) < low and high < np.int32(_INFINITE))


@inlined
def _value(code: np.uint8, levels: Levels) -> np.float32:
    return levels.base + np.float32(np.int32(code)) * levels.step


@kernel
def write(codes: Codes, levels: Levels, out: Floats) -> None:
    """out = the values of the codes."""
    wide()
    if levels.back == 1:
        for i in range(out.size):
            out[i] = _value(codes[i], levels)
    else:
        for i in range(out.size):
            out[i] = _value(codes[i], levels) * levels.back


@kernel
def add(codes: Bytes, levels: Levels, weight: np.float32, out: Floats) -> None:
    """out += weight * values."""
    wide()
    if levels.back == 1:
        for i in range(out.size):
            out[i] += weight * _value(codes[i], levels)
    else:
        for i in range(out.size):
            out[i] += weight * (_value(codes[i], levels) * levels.back)


@inlined
def _pack(cells: Words32, count: int, bits: int, packed: Words32, tail: Bytes) -> None:
    """The codes of a block, four in a cell: full rows to `packed`, the rest to `tail`."""
    step = ROW // 32 * bits
    for k in range(count // ROW):
        pack_row(cells[k * _CELLS : (k + 1) * _CELLS], bits, packed[k * step : (k + 1) * step])
    if count % ROW:
        pack_tail(cells.view(np.uint8)[count // ROW * ROW :], count % ROW, bits, tail)


@inlined
def _unpack(packed: Words32, tail: Bytes, count: int, bits: int, cells: Words32) -> None:
    """Inverse of _pack."""
    step = ROW // 32 * bits
    for k in range(count // ROW):
        unpack_row(packed[k * step : (k + 1) * step], bits, cells[k * _CELLS : (k + 1) * _CELLS])
    if count % ROW:
        unpack_tail(tail, count % ROW, bits, cells.view(np.uint8)[count // ROW * ROW :])


@kernel
def encode(x: Floats, bits: int, rule: Rule, levels: Levels, draws: Draws, out: Cells, lost: Lost) -> None:
    """Write codes of `bits` bits of `x`: `rule` makes them of values times 1 / levels.back."""
    wide()
    error, up = lost.error, np.float32(np.float32(1) / levels.back)
    copies = error.ctypes.data != x.ctypes.data
    words, row = np.empty(HALF, np.uint32), np.empty(BLOCK, np.float32)
    cells = np.zeros(BLOCK // 4 + 2, np.uint32)
    code = cells.view(np.uint8)
    for start in range(0, x.size, BLOCK):
        v = x[start : start + BLOCK]
        if up == 1 and v.size == BLOCK:
            round_rows(v, rule, draws, start, words, code)
        else:
            row[v.size :] = rule.shift
            for i in range(v.size):
                row[i] = v[i] * up
            round_rows(row, rule, draws, start, words, code)
        if lost.dots.size:
            write(code, levels, row[: v.size])
            add_inner_products(v, row[: v.size], lost.dots)
        if error.size:
            left = error[start : start + BLOCK]
            for at in range(0, left.size, ROW):
                fetch_row_to_write(left, at + BLOCK)
            if copies:
                copy_to(v, left)
            add(code, levels, np.float32(-1), left)
        if out.codes.size:
            out.codes[start : start + BLOCK] = code[: v.size]
        else:
            _pack(cells, v.size, bits, out.packed[start // 32 * bits :], out.tail)


@kernel
def decode(packed: Words32, tail: Bytes, bits: int, levels: Levels, weight: np.float32, out: Floats, adding: bool) -> None:
    """out = decoded, or out += weight * decoded."""
    wide()
    cells = np.empty(BLOCK // 4 + 2, np.uint32)
    code = cells.view(np.uint8)
    for start in range(0, out.size, BLOCK):
        part = out[start : start + BLOCK]
        _unpack(packed[start // 32 * bits :], tail, part.size, bits, cells)
        for row in range(0, part.size, ROW):
            fetch_row_to_write(out, start + row + AHEAD)
            if adding:
                add(code[row : row + ROW], levels, weight, part[row : row + ROW])
            else:
                write(code[row : row + ROW], levels, part[row : row + ROW])


@kernel
def is_padded(tail: Bytes, count: int, bits: int) -> bool:
    """True if no bit is 1 behind the last of `count` codes of an incomplete row."""
    code = np.empty(ROW + 8, np.uint8)
    unpack_tail(tail, count, bits, code)
    some = np.uint8(0)
    for i in range(count, code.size):
        some |= code[i]
    return bool(some == 0)
