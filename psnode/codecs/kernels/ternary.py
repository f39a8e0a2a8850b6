"""Coding of whole arrays of digits 0, 1, 2 in blocks of 2560. A block is five rows of 512 digits, packed into 512 bytes."""

from __future__ import annotations

import numpy as np

from psnode.codecs.arrays import Bytes, Codes, Floats
from psnode.codecs.kernels.cache_hints import copy_to, wide
from psnode.codecs.kernels.jit import inlined, kernel
from psnode.codecs.kernels.trits import DIGITS, is_packed, unpack

BLOCK = 512 * DIGITS


@inlined
def _value(digit: np.uint8, minus: np.float32, zero: np.float32, plus: np.float32) -> np.float32:
    return plus if digit == np.uint8(2) else (minus if digit == np.uint8(0) else zero)


@kernel
def add(digits: Bytes, scale: np.float32, out: Floats) -> None:
    """Add (digit - 1) scale to `out` for every digit."""
    wide()
    minus, zero = -scale, np.float32(0) * scale
    for i in range(out.size):
        out[i] += _value(digits[i], minus, zero, scale)


@kernel
def write(digits: Bytes, scale: np.float32, out: Floats) -> None:
    """Write (digit - 1) scale to `out` for every digit."""
    wide()
    minus, zero = -scale, np.float32(0) * scale
    for i in range(out.size):
        out[i] = _value(digits[i], minus, zero, scale)


@kernel
def digits_of(packed: Bytes, codes: Codes) -> None:
    """Overwrite `codes` with the digits in `packed`, one per byte. `packed` must be valid."""
    digits = np.empty(BLOCK, np.uint8)
    for start in range(0, codes.size, BLOCK):
        unpack(packed[start // DIGITS : (start + BLOCK) // DIGITS], digits)
        part = codes[start : start + BLOCK]
        copy_to(digits[: part.size], part)


@kernel
def is_valid(packed: Bytes, size: int) -> bool:
    """Return True if encode can make `packed` from an array of `size` values."""
    if packed.size != (size + DIGITS - 1) // DIGITS:
        return False
    for start in range(0, size, BLOCK):
        if not is_packed(packed[start // DIGITS : (start + BLOCK) // DIGITS], min(BLOCK, size - start)):
            return False
    return True
