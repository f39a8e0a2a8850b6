"""Functions used by kernels generated from formulas (psnode.codecs.rows.numba.text) and by hand-written kernels for rows."""

from __future__ import annotations

import numpy as np
from numba import carray  # type: ignore[attr-defined]

from psnode.codecs.arrays import Bytes, Floats, Int32s, Words, Words32
from psnode.codecs.kernels.bitmasks import MAGNITUDE
from psnode.codecs.kernels.cache_hints import AHEAD, fetch_row, wide
from psnode.codecs.kernels.finite import INFINITY_BITS
from psnode.codecs.kernels.fixed_point import goes_up, is_tie
from psnode.codecs.kernels.jit import inlined, kernel
from psnode.codecs.kernels.llvm.instructions import floats_at, instructions, viewed
from psnode.codecs.kernels.llvm.operations import load, packed, store, unpacked
from psnode.codecs.kernels.norms import top_bits
from psnode.codecs.kernels.parts import BEGIN, NOT_FINITE, STRETCH, PartTable, add_parts
from psnode.codecs.rng import BLOCK, HALF, fill

ROW = 512
_GROUP = 64


@instructions
def bits_of(x: np.float32) -> np.uint32:
    """Return the bits of the float32 `x` as an integer."""
    return x.view(np.uint32)


@instructions
def float_of(x: np.uint32) -> np.float32:
    """Return the float32 with the bits `x`."""
    return x.view(np.float32)


@instructions
def low_half(word: np.uint32) -> np.uint32:
    """Return the 16 lower bits of `word`."""
    return word & np.uint32(0xFFFF)


@instructions
def high_half(word: np.uint32) -> np.uint32:
    """Return the 16 upper bits of `word`."""
    return word >> np.uint32(16)


@inlined
def uncounted(x: Floats) -> Floats:
    """Return `x` as an array without reference counts. `x` must stay alive as long as this array is used.

    Counting takes a tenth of the time for short rows.
    """
    return carray(floats_at(x.ctypes.data), x.size)


@inlined
def is_finite(v: Floats) -> bool:
    """Return True if all values of a row are finite."""
    return bool(top_bits(viewed(v, np.uint32), np.uint32(0)) < np.uint32(INFINITY_BITS))


@inlined
def largest_512(v: Floats) -> np.float32:
    """Return the largest magnitude of a finite row."""
    return np.float32(float_of(np.uint32(top_bits(viewed(v, np.uint32), np.uint32(0)))))


@instructions
def pack_64(low: Bytes, start: int, out: Words32, at: int) -> None:
    """Set the two words out[at : at + 2]: bit j is 1 if low[start + j] is not 0, else 0."""
    store(out, at, packed(load(low, start, _GROUP) >= 1))


@instructions
def unpack_64(mask: np.uint64, low: Bytes, start: int) -> None:
    """Write the 64 bits of `mask` to low[start : start + 64], one per byte."""
    store(low, start, unpacked(mask).astype(np.uint8))


@inlined
def pack_signs(low: Bytes, out: Words32) -> None:
    """Set bit i mod 32 of word i // 32 to 1 if low[i] is not 0, else to 0, for 512 values."""
    for g in range(ROW // _GROUP):
        pack_64(low, _GROUP * g, out, 2 * g)


@inlined
def unpack_signs(data: Words32, low: Bytes) -> None:
    """Unpack 512 bits into `low`, one per byte. This is the inverse of pack_signs."""
    for g in range(ROW // _GROUP):
        unpack_64(np.uint64(data[2 * g]) | (np.uint64(data[2 * g + 1]) << np.uint64(32)), low, _GROUP * g)


@kernel
def draw_coins(key: Words, stream: int, row: int, words: Words32, coins: Bytes) -> None:
    """Write a coin (0 or 1) for every coordinate of a row. It is bit i mod 32 of word i // 32, as in psnode.codecs.kernels.sign.

    `words` caches 256 random words, which serve a group of 16 rows, followed by the number of this group plus 1. It holds zeros
    at first.
    """
    piece = row // 16
    if words[HALF] != np.uint32(piece + 1):
        fill(words[:HALF], key, stream, piece * BLOCK)
        words[HALF] = np.uint32(piece + 1)
    unpack_signs(words[row % 16 * 16 :], coins)


@inlined
def settled(fixed: np.uint32, exact: float, key: Words, stream: int, index: int) -> np.uint32:
    """Return floor(fixed / 2^16), or this number plus 1.

    1 is added only if the 16 random bits in `fixed` leave a tie and further random bits round up.
    """
    up = is_tie(fixed) and goes_up(exact, key, stream, index)
    return np.uint32(np.uint32(fixed >> np.uint32(16)) + np.uint32(up))


@inlined
def ordered(bits: np.int32) -> np.int32:
    """Return an integer that is ordered like the float32 with these `bits`. The function is its own inverse."""
    return np.int32(bits ^ ((bits >> np.int32(31)) & np.int32(MAGNITUDE)))


@inlined
def top_of(place: np.int32) -> np.float32:
    """Return the float32 whose ordered integer is `place`, as `survey_ends` stores it."""
    return np.float32(float_of(np.uint32(ordered(place))))


@inlined
def least_of(place: np.int32) -> np.float32:
    """Return the magnitude that `survey_magnitudes` stored as `place`."""
    return np.float32(float_of(np.uint32(np.uint32(np.uint32(place) + np.uint32(1)) & np.uint32(MAGNITUDE))))


@kernel
def survey_ends(x: Floats, tops: Int32s, parts: PartTable) -> bool:
    """Update the first three entries of `tops` with the largest magnitude, the least and the greatest value of `x`.

    They are stored as ordered integers. `parts` are first added to their target, the memory of `x`. Return False if a value or
    a part is not finite.
    """
    wide()
    bits = viewed(x, np.int32)
    largest, least, greatest = tops[0], tops[1], tops[2]
    cursor = BEGIN
    for start in range(0, x.size, ROW):
        if len(parts) > 1 and start % STRETCH == 0:
            cursor = add_parts(parts, cursor, start, min(start + STRETCH, x.size))
            if cursor == NOT_FINITE:
                return False
        fetch_row(x, start + AHEAD)
        part = bits[start : start + ROW]
        for i in range(part.size):
            largest = max(largest, np.int32(part[i] & np.int32(MAGNITUDE)))
            place = ordered(part[i])
            least = min(least, place)
            greatest = max(greatest, place)
    tops[0], tops[1], tops[2] = largest, least, greatest
    return bool(largest < np.int32(INFINITY_BITS))


@kernel
def survey_magnitudes(x: Floats, tops: Int32s, parts: PartTable) -> bool:
    """Update tops[0], the bits of the largest magnitude, and tops[4], the bits of the least nonzero magnitude minus 1.

    `parts` are first added to the memory of `x`. For tops[4], a zero counts as 2^31 - 1. Return False if a value or
    a part is not finite.
    """
    wide()
    bits = viewed(x, np.uint32)
    magnitude, one = np.uint32(MAGNITUDE), np.uint32(1)
    largest, least = np.uint32(tops[0]), np.uint32(tops[4])
    cursor = BEGIN
    for start in range(0, x.size, ROW):
        if len(parts) > 1 and start % STRETCH == 0:
            cursor = add_parts(parts, cursor, start, min(start + STRETCH, x.size))
            if cursor == NOT_FINITE:
                return False
        fetch_row(x, start + AHEAD)
        part = bits[start : start + ROW]
        for i in range(part.size):
            largest = max(largest, np.uint32(part[i] & magnitude))
            least = min(least, np.uint32(np.uint32(part[i] - one) & magnitude))
    tops[0], tops[4] = np.int32(largest), np.int32(least)
    return bool(largest < np.uint32(INFINITY_BITS))
