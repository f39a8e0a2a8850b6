"""Dithering of a block of 512 coordinates, in loops that LLVM vectorises.

Let a be a coordinate in units of step * rms, and u = (k + 1/2) / 2^16 - 1/2 its dither, with k uniform in 0..65535. a is
rounded to the integer q = floor((2^16 a + k) / 2^16), and decodes to y = q - u. Ties (psnode.codecs.kernels.fixed_point) are
settled as if k had further random bits. The 1/2 that is added to k in u is the mean of these bits.

The |u| of the coordinates j, 128 + j, 256 + j and 384 + j of a block lie in the four quarters of 0..1/2, one in each. The
number of the quarter is called the class of a coordinate. Only four orders of the classes occur: the class of coordinate 128 g
+ j is g xor r_j, with r_j uniform in 0..3. Signs and the other bits of u are independent.

Blocks whose step * rms is not 0 but outside 2^-50..2^50 are computed in float64, one coordinate at a time.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from psnode.codecs.arrays import Floats, Words, Words32
from psnode.codecs.kernels.cache_hints import wide
from psnode.codecs.kernels.fixed_point import ONES, UNIT, fixed_point, goes_up, is_tie
from psnode.codecs.kernels.jit import inlined, kernel
from psnode.codecs.kernels.planes import BLOCK
from psnode.codecs.rng import fill

Int32s = npt.NDArray[np.int32]

QUARTER = BLOCK // 4
_LOW = 2.0**-50
_HIGH = 2.0**50
_LARGEST = float(np.finfo(np.float32).max)


@inlined
def _dither(half: np.uint32, quarter: np.uint32) -> np.uint32:
    """Return the dither k whose |u| lies in the quarter number `quarter`. Bits 0..12 and 15 of `half` are its random bits."""
    magnitude = np.uint32(half & np.uint32(0x1FFF)) | np.uint32(quarter << np.uint32(13))
    return np.uint32(magnitude ^ np.uint32(np.uint32(0x7FFF) + np.uint32(half >> np.uint32(15))))


@kernel
def block_dither(key: Words, stream: int, block: int, words: Words32, orders: Words32, k: Words32) -> None:
    """Write the dither k of 512 coordinates to `k`, and the 128 values r_j to `orders`. `words`: 256 words of scratch."""
    wide()
    fill(words, key, stream, block * 64)
    ones = np.uint32(0xFFFF)
    for j in range(QUARTER):
        a = words[j]
        b = words[QUARTER + j]
        r = np.uint32(np.uint32(a >> np.uint32(13)) & np.uint32(3))
        orders[j] = r
        k[j] = _dither(np.uint32(a & ones), r)
        k[QUARTER + j] = _dither(np.uint32(b & ones), np.uint32(r ^ np.uint32(1)))
        k[2 * QUARTER + j] = _dither(np.uint32(a >> np.uint32(16)), np.uint32(r ^ np.uint32(2)))
        k[3 * QUARTER + j] = _dither(np.uint32(b >> np.uint32(16)), np.uint32(r ^ np.uint32(3)))


@kernel
def _settle_ties(v: Floats, factor: np.float32, k: Words32, key: Words, stream: int, start: int, q: Int32s) -> None:
    """Add 1 to each integer of `q` that has a tie which further random bits round up."""
    for i in range(BLOCK):
        a = v[i] * factor
        if is_tie(fixed_point(a, np.uint32(0), k[i])) and goes_up(np.float64(a), key, stream, start + i):
            q[i] += np.int32(1)


@kernel
def _careful_quantise(v: Floats, factor: float, k: Words32, key: Words, stream: int, start: int, q: Int32s) -> None:
    for i in range(BLOCK):
        a = np.float64(v[i]) * factor
        t = np.int64(np.floor(a)) + np.int64(k[i])
        if t & ONES == ONES and goes_up(a, key, stream, start + i):
            t += 1
        q[i] = t >> 16


@kernel
def quantise(v: Floats, delta: float, k: Words32, key: Words, stream: int, start: int, q: Int32s) -> None:
    """Write the integers q of the values `v`, the 512 coordinates from `start` on, where delta = step * rms."""
    wide()
    if delta == 0:
        q[:] = 0
    elif _LOW <= delta <= _HIGH:
        factor = np.float32(UNIT / delta)
        ones = np.uint32(ONES)
        worst = np.uint32(0)
        for i in range(BLOCK):
            t = fixed_point(v[i] * factor, np.uint32(0), k[i])
            worst = max(worst, np.uint32(t & ones))
            q[i] = np.int32(np.int32(t) >> np.int32(16))
        if worst == ones:
            _settle_ties(v, factor, k, key, stream, start, q)
    else:
        _careful_quantise(v, UNIT / delta, k, key, stream, start, q)


@kernel
def reconstruct(q: Int32s, delta: float, k: Words32, y: Floats) -> None:
    """Write the decoded values (q - u) delta to `y`, limited to the range of float32."""
    wide()
    if delta == 0:
        y[:] = np.float32(0)
    elif _LOW <= delta <= _HIGH:
        unit = np.float32(delta / UNIT)
        for i in range(BLOCK):
            w = np.uint32(np.uint32(np.uint32(q[i]) << np.uint32(16)) + np.uint32(np.uint32(32768) - k[i]))
            y[i] = (np.float32(np.int32(w)) - np.float32(0.5)) * unit
    else:
        for i in range(BLOCK):
            value = (np.float64(np.int64(q[i]) * 65536 + 32768 - np.int64(k[i])) - 0.5) * (delta / UNIT)
            y[i] = np.float32(min(max(value, -_LARGEST), _LARGEST))


@kernel
def to_codes(q: Int32s, k: Words32, codes: Words32) -> np.uint32:
    """Write the codes of the integers `q`, and return the largest code.

    0 has the code 0. The neighbour of 0 that the dither favours has the code 1, the other neighbour has the code 2, and so on.
    """
    wide()
    top = np.uint32(0)
    for i in range(BLOCK):
        flip = np.int32(-np.int32(k[i] >> np.uint32(15)))
        s = np.int32(np.int32(q[i] ^ flip) - flip)
        codes[i] = np.uint32(np.int32(np.int32(s << np.int32(1)) ^ np.int32(s >> np.int32(31))))
        top = max(top, codes[i])
    return top


@kernel
def from_codes(codes: Words32, k: Words32, q: Int32s) -> None:
    """Overwrite `q` with the integers for which the codes stand. This is the inverse of to_codes."""
    wide()
    for i in range(BLOCK):
        s = np.int32(np.int32(codes[i] >> np.uint32(1)) ^ np.int32(-np.int32(codes[i] & np.uint32(1))))
        flip = np.int32(-np.int32(k[i] >> np.uint32(15)))
        q[i] = np.int32(np.int32(s ^ flip) - flip)


@kernel
def by_class(codes: Words32, orders: Words32) -> None:
    """Exchange the codes of the coordinates 128 g + j so that position 128 c + j holds the code of class c.

    The exchange is its own inverse.
    """
    wide()
    for j in range(QUARTER):
        odd = np.uint32(-np.int32(orders[j] & np.uint32(1)))
        high = np.uint32(-np.int32(orders[j] >> np.uint32(1)))
        a, b = codes[j], codes[QUARTER + j]
        c, d = codes[2 * QUARTER + j], codes[3 * QUARTER + j]
        ab = np.uint32(np.uint32(a ^ b) & odd)
        cd = np.uint32(np.uint32(c ^ d) & odd)
        a, b, c, d = a ^ ab, b ^ ab, c ^ cd, d ^ cd
        ac = np.uint32(np.uint32(a ^ c) & high)
        bd = np.uint32(np.uint32(b ^ d) & high)
        codes[j] = a ^ ac
        codes[QUARTER + j] = b ^ bd
        codes[2 * QUARTER + j] = c ^ ac
        codes[3 * QUARTER + j] = d ^ bd
