"""Packing of digits 0, 1, 2, five to a byte. A digit takes 1.6 bits, close to the log2(3) = 1.585 bits that it needs.

A block of t digits takes S = ceil(t / 5) bytes. Byte j is the sum over k = 0..4 of 3^k times digit j + S k (0 after the last
digit). A byte is at most 242. In this layout, loops process all lanes of a vector at once.
"""

from __future__ import annotations

import numpy as np

from psnode.codecs.arrays import Bytes
from psnode.codecs.kernels.cache_hints import wide
from psnode.codecs.kernels.jit import inlined, kernel

DIGITS = 5  # per byte
_TOP = 242


@inlined
def _more(byte: np.uint8, digit: np.uint8) -> np.uint8:
    return np.uint8(np.uint8(np.uint8(byte + byte) + byte) + digit)


@kernel
def pack(digits: Bytes, out: Bytes) -> None:
    """Pack 5 * out.size digits into `out`. Digits after the last one of the block must be 0."""
    wide()
    n = out.size
    a, b, c, d, e = digits[:n], digits[n : 2 * n], digits[2 * n : 3 * n], digits[3 * n : 4 * n], digits[4 * n : 5 * n]
    for j in range(n):
        out[j] = _more(_more(_more(_more(e[j], d[j]), c[j]), b[j]), a[j])


@inlined
def _top_digit(byte: np.uint8, power: int) -> np.uint8:
    """Return the digit of `byte` at the place value 3^k = `power`, given that `byte` is less than 3 power."""
    return np.uint8(np.uint8(byte >= np.uint8(power)) + np.uint8(byte >= np.uint8(2 * power)))


@inlined
def _rest(byte: np.uint8, power: int) -> np.uint8:
    """Return `byte` without its digit at the place value 3^k = `power`."""
    twice, once = np.uint8(2 * power), np.uint8(power)
    return np.uint8(byte - (twice if byte >= twice else (once if byte >= once else np.uint8(0))))


@kernel
def unpack(data: Bytes, digits: Bytes) -> None:
    """Overwrite digits[: 5 * data.size] with the digits in `data`. Any bytes give digits 0, 1 or 2.

    This is the inverse of pack.
    """
    wide()
    n = data.size
    a, b, c, d, e = digits[:n], digits[n : 2 * n], digits[2 * n : 3 * n], digits[3 * n : 4 * n], digits[4 * n : 5 * n]
    for j in range(n):
        byte = min(data[j], np.uint8(_TOP))
        e[j] = _top_digit(byte, 81)
        byte = _rest(byte, 81)
        d[j] = _top_digit(byte, 27)
        byte = _rest(byte, 27)
        c[j] = _top_digit(byte, 9)
        byte = _rest(byte, 9)
        b[j] = _top_digit(byte, 3)
        a[j] = _rest(byte, 3)


@kernel
def is_packed(data: Bytes, count: int) -> bool:
    """Return True if `pack` can make `data` from `count` digits. Then no byte is above 242, and zeros follow the last digit."""
    top = np.uint8(0)
    for j in range(data.size):
        top = max(top, data[j])
    if data.size != (count + DIGITS - 1) // DIGITS or top > np.uint8(_TOP):
        return False
    rest = 0
    for i in range(count, DIGITS * data.size):
        rest += int(data[i % data.size]) // 3 ** (i // data.size) % 3
    return rest == 0


@kernel
def cut_digits(unit: Bytes, count: int, out: Bytes) -> None:
    """Write the first `count` digits of the packed block `unit` to `out`, packed."""
    digits = np.empty(DIGITS * unit.size, np.uint8)
    unpack(unit, digits)
    digits[count:] = 0
    pack(digits[: DIGITS * out.size], out)


@kernel
def fill_digits(tail: Bytes, count: int, unit: Bytes) -> None:
    """Write the digits in `tail` to `unit` as a full packed block, in which digits from `count` on are 0.

    This is the inverse of cut_digits.
    """
    digits = np.zeros(DIGITS * unit.size, np.uint8)
    unpack(tail, digits[: DIGITS * tail.size])
    digits[count:] = 0
    pack(digits, unit)
