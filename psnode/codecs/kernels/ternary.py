"""The loops of terngrad: 2560 coordinates at a time, five rows of 512 that are packed into 512 bytes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from psnode.codecs.arrays import Bytes, Codes, Float64s, Floats
from psnode.codecs.kernels.dots import Lost, add_row
from psnode.codecs.kernels.jit import inlined, kernel
from psnode.codecs.kernels.memory import AHEAD, copy_to, fetch_row_to_write, wide
from psnode.codecs.kernels.stochastic import ROW, Rule, round_rows
from psnode.codecs.kernels.trits import DIGITS, is_packed, pack, unpack
from psnode.codecs.rng import HALF, Draws

BLOCK = DIGITS * ROW


class Scale(NamedTuple):
    """A value v is cut off at +-scale if `clips`; |v| up factor is then its chance of a digit other than 1, times 2^16."""

    scale: np.float32
    up: np.float32
    factor: np.float32
    clips: bool


class Digits(NamedTuple):
    """Digits 0, 1, 2 of an array, packed or one a byte: the other is empty."""

    packed: Bytes
    codes: Codes


@kernel
def encode(x: Floats, grid: Scale, draws: Draws, digits_of_x: Digits, lost: Lost) -> None:
    """Write the digits of `x`."""
    packed, codes, error = digits_of_x.packed, digits_of_x.codes, lost.error
    rule = Rule(np.float32(0), grid.factor, -1)
    copies = error.ctypes.data != x.ctypes.data
    words, row = np.empty(HALF, np.uint32), np.empty(BLOCK, np.float32)
    digits = np.empty(BLOCK, np.uint8)
    for start in range(0, x.size, BLOCK):
        block = x[start : start + BLOCK]
        if grid.clips or block.size < BLOCK or grid.up != 1:
            row[block.size :] = 0
            for i in range(block.size):
                row[i] = min(max(block[i], -grid.scale), grid.scale) * grid.up
            round_rows(row, rule, draws, start, words, digits)
            digits[block.size :] = 0
        else:
            round_rows(block, rule, draws, start, words, digits)
        if codes.size:
            copy_to(digits[: block.size], codes[start : start + BLOCK])
        else:
            pack(digits, packed[start // DIGITS : (start + BLOCK) // DIGITS])
        if lost.dots.size:
            _add_dots(block, digits, grid.scale, row, start // ROW, lost.dots)
        if error.size:
            left = error[start : start + BLOCK]
            for at in range(0, left.size, ROW):
                fetch_row_to_write(left, at + BLOCK)
            if copies:
                copy_to(block, left)
            add(digits, -grid.scale, left)


@kernel
def _add_dots(x: Floats, digits: Bytes, scale: np.float32, row: Floats, first: int, dots: Float64s) -> None:
    """Write the inner products of a block, which begins with row number `first`."""
    v = np.zeros(ROW, np.float32)
    write(digits, scale, row[: x.size])
    row[x.size :] = 0
    for start in range(0, x.size, ROW):
        d = row[start : start + ROW]
        v[x.size - start :] = 0
        copy_to(x[start : start + ROW], v)
        add_row(v, d, first + start // ROW, dots)


@inlined
def _value(digit: np.uint8, minus: np.float32, zero: np.float32, plus: np.float32) -> np.float32:
    return plus if digit == np.uint8(2) else (minus if digit == np.uint8(0) else zero)


@kernel
def add(digits: Bytes, scale: np.float32, out: Floats) -> None:
    """out += (digit - 1) scale."""
    wide()
    minus, zero = -scale, np.float32(0) * scale
    for i in range(out.size):
        out[i] += _value(digits[i], minus, zero, scale)


@kernel
def write(digits: Bytes, scale: np.float32, out: Floats) -> None:
    """out = (digit - 1) scale."""
    wide()
    minus, zero = -scale, np.float32(0) * scale
    for i in range(out.size):
        out[i] = _value(digits[i], minus, zero, scale)


@kernel
def decode(packed: Bytes, scale: np.float32, out: Floats, adding: bool) -> None:
    """out = decoded, or out += decoded."""
    digits = np.empty(BLOCK, np.uint8)
    for start in range(0, out.size, BLOCK):
        unpack(packed[start // DIGITS : (start + BLOCK) // DIGITS], digits)
        for row in range(0, min(BLOCK, out.size - start), ROW):
            fetch_row_to_write(out, start + row + AHEAD)
            part = out[start + row : start + row + ROW]
            if adding:
                add(digits[row : row + ROW], scale, part)
            else:
                write(digits[row : row + ROW], scale, part)


@kernel
def is_valid(packed: Bytes, size: int) -> bool:
    """True if encode makes `packed` of some array of `size` values."""
    if packed.size != (size + DIGITS - 1) // DIGITS:
        return False
    for start in range(0, size, BLOCK):
        if not is_packed(packed[start // DIGITS : (start + BLOCK) // DIGITS], min(BLOCK, size - start)):
            return False
    return True
