"""Steps of kernels generated of formulas (psnode.codecs.rows.numba.text), and of those that code rows alike by hand."""

from __future__ import annotations

import numpy as np
from numba import carray  # type: ignore[attr-defined]

from psnode.codecs.arrays import Bytes, Floats, Int32s, Words, Words32
from psnode.codecs.kernels.bitmasks import MAGNITUDE
from psnode.codecs.kernels.cache_hints import AHEAD, fetch_row, wide
from psnode.codecs.kernels.finite import INFINITY_BITS
from psnode.codecs.kernels.fixed_point import goes_up, is_tie
from psnode.codecs.kernels.jit import inlined, kernel
from psnode.codecs.kernels.llvm.instructions import floats_at, instructions
from psnode.codecs.kernels.llvm.operations import load, packed, store, unpacked
from psnode.codecs.kernels.norms import top_bits
from psnode.codecs.kernels.parts import BEGIN, NOT_FINITE, STRETCH, PartTable, add_parts
from psnode.codecs.kernels.planes import new_rows, pack_codes, unpack_codes
from psnode.codecs.rng import BLOCK, HALF, fill

ROW = 512
_GROUP = 64


@instructions
def bits_of(x: np.float32) -> np.uint32:
    """The bits of `x`."""
    return x.view(np.uint32)


@instructions
def float_of(x: np.uint32) -> np.float32:
    """The number with the bits `x`."""
    return x.view(np.float32)


@inlined
def uncounted(x: Floats) -> Floats:
    """The memory of `x`, which lives on: slices of it count no references, which would take a tenth of the time of short rows."""
    return carray(floats_at(x.ctypes.data), x.size)


@inlined
def is_finite(v: Floats) -> bool:
    """True if a row is finite."""
    return bool(top_bits(v.view(np.uint32), np.uint32(0)) < np.uint32(INFINITY_BITS))


@inlined
def largest_512(v: Floats) -> np.float32:
    """The largest magnitude of a row that is finite."""
    return np.float32(float_of(np.uint32(top_bits(v.view(np.uint32), np.uint32(0)))))


@instructions
def pack_64(low: Bytes, start: int, out: Words32, at: int) -> None:
    """Bit j of the two words out[at : at + 2] is 1 where low[start + j] is not 0."""
    store(out, at, packed(load(low, start, _GROUP) >= 1))


@instructions
def unpack_64(mask: np.uint64, low: Bytes, start: int) -> None:
    """low[start : start + 64] = the bits of `mask`."""
    store(low, start, unpacked(mask).astype(np.uint8))


@inlined
def pack_signs(low: Bytes, out: Words32) -> None:
    """Bit i mod 32 of word i // 32 is 1 where low[i], of 512, is not 0."""
    for g in range(ROW // _GROUP):
        pack_64(low, _GROUP * g, out, 2 * g)


@inlined
def unpack_signs(data: Words32, low: Bytes) -> None:
    """Inverse of pack_signs."""
    for g in range(ROW // _GROUP):
        unpack_64(np.uint64(data[2 * g]) | (np.uint64(data[2 * g + 1]) << np.uint64(32)), low, _GROUP * g)


@kernel
def draw_coins(key: Words, stream: int, row: int, words: Words32, coins: Bytes) -> None:
    """coins[i] = 0 or 1, a coin for every coordinate of a row: bit i mod 32 of word i // 32, as in kernels.sign.

    `words`: those of 16 rows, and after their 256 the number of these rows + 1; zeros at first.
    """
    piece = row // 16
    if words[HALF] != np.uint32(piece + 1):
        fill(words[:HALF], key, stream, piece * BLOCK)
        words[HALF] = np.uint32(piece + 1)
    unpack_signs(words[row % 16 * 16 :], coins)


@inlined
def settled(fixed: np.uint32, exact: float, key: Words, stream: int, index: int) -> np.uint32:
    """fixed / 2^16 without its fraction; one more where 16 random bits were too few to tell and further ones say so."""
    up = is_tie(fixed) and goes_up(exact, key, stream, index)
    return np.uint32(np.uint32(fixed >> np.uint32(16)) + np.uint32(up))


@inlined
def ordered(bits: np.int32) -> np.int32:
    """An integer that is ordered as the float32 with `bits` is; its own inverse."""
    return np.int32(bits ^ ((bits >> np.int32(31)) & np.int32(MAGNITUDE)))


@inlined
def top_of(place: np.int32) -> np.float32:
    """The number whose place among all is `place`: see `survey_ends`."""
    return np.float32(float_of(np.uint32(ordered(place))))


@inlined
def least_of(place: np.int32) -> np.float32:
    """The magnitude that `survey_magnitudes` left as `place`."""
    return np.float32(float_of(np.uint32(np.uint32(np.uint32(place) + np.uint32(1)) & np.uint32(MAGNITUDE))))


@kernel
def survey_ends(x: Floats, tops: Int32s, parts: PartTable) -> bool:
    """Raise `tops`, the largest magnitude, the least and the greatest value, as integers ordered alike; all finite?

    `parts` are added to their target, the memory of `x`, beforehand; False if one is not finite.
    """
    wide()
    bits = x.view(np.int32)
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
    """Raise tops[0], the largest magnitude as its bits, and lower tops[4], the least above 0, less one; all finite?

    `parts`: as for survey_ends. Of zeros the latter becomes 2^31 - 1.
    """
    wide()
    bits = x.view(np.uint32)
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


@kernel
def cut_row(row: Bytes, bits: int, count: int, out: Bytes) -> None:
    """The first `count` < 512 codes of a packed row, packed anew: see psnode.codecs.kernels.planes."""
    codes, rows = np.empty(ROW, np.uint32), new_rows()
    unpack_codes(codes, ROW, bits, rows, row.view(np.uint32), row[:0])
    pack_codes(codes, count, bits, rows, row[:0].view(np.uint32), out)


@kernel
def fill_row(tail: Bytes, bits: int, count: int, row: Bytes) -> None:
    """Inverse of cut_row: the codes from `count` on are 0."""
    codes, rows = np.empty(ROW, np.uint32), new_rows()
    unpack_codes(codes, count, bits, rows, tail[:0].view(np.uint32), tail)
    codes[count:] = 0
    pack_codes(codes, ROW, bits, rows, row.view(np.uint32), row[:0])
