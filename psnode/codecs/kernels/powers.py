"""Rounding at random to powers of two: the loops of nuqsgd for buckets of any size.

In units of a norm the magnitudes are 0 and 2^-s, ..., 1/2, 1. A value between two neighbours is rounded up with probability its
fraction of the way, exactly: 16 random bits are added to the fraction's first 16, and more where that gives 16 ones.
The code of 0 is 0, that of +-2^-j is 1 + 2 j + (1 if it is negative).

Buckets whose norm lies outside 2^-50..2^50 are computed in float64.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from psnode.codecs.arrays import Bytes, Float64s, Floats, Words32
from psnode.codecs.kernels.jit import inlined, kernel
from psnode.codecs.kernels.norms import NOT_FINITE, l2_norm, max_norm
from psnode.codecs.kernels.packed import from_rows, pack_block, to_rows, unpack_block
from psnode.codecs.kernels.planes import BLOCK, ROW
from psnode.codecs.kernels.ties import chance
from psnode.codecs.rng import HALF, Draws, fill

L2, MAX = 1, 2  # norms, of every bucket
TABLE = 128  # more than the codes there can be: s is at most 62, so that 2^(s + 16) and the values below 2^-s are within float32
_LOW_NORM = 2.0**-50
_HIGH_NORM = 2.0**50
_LARGEST = float(np.finfo(np.float32).max)
_ONE = 0x3F800000  # 1.0, as bits
_UNIT = 65536.0
_ENDS_IN_ONES = 0xFFFF


class Grid(NamedTuple):
    """The magnitudes of a bucket are 0 and 2^-s, ..., 1 of its norm; a code has `bits`; `bucket` is a multiple of 512."""

    s: int
    bits: int
    bucket: int


@inlined
def _binade(r: np.float32, bits: np.uint32, k: np.uint32, linear: np.float32, end: np.float32, least: np.uint32) -> np.uint32:
    """The bits of r (below 2^-s: of a number whose fraction r is of the lowest binade), and k 2^-16 of its binade added."""
    below = np.uint32(np.uint32(np.int32(min(r, end) * linear)) << np.uint32(7))
    start = bits if bits >= least else np.uint32(np.uint32(least - np.uint32(1 << 23)) + below)
    return np.uint32(start + np.uint32(k << np.uint32(7)))


@kernel
def _careful_code(v: float, r: float, s: int, k: int, draws: Draws, index: int) -> int:
    """The code of one coordinate from r = |v| / norm in float64, ties settled."""
    if r == 0.0:
        return 0
    mantissa, exponent = math.frexp(r)
    level = max(s + exponent, 0)  # r lies in 2^(level - s - 1) .. 2^(level - s), or below 2^-s
    fraction = 2.0 * mantissa - 1.0 if level else r * 2.0**s
    scaled = fraction * _UNIT
    whole = np.int64(scaled)
    t = whole + k
    if t > _ENDS_IN_ONES or (t == _ENDS_IN_ONES and chance(scaled - np.float64(whole), draws.key, draws.stream, index)):
        level += 1
    return 1 + 2 * (s + 1 - level) + (v < 0) if level else 0


@inlined
def _vector_quantise(
    v: Floats, r: Floats, s: int, linear: np.float32, k: Words32, draws: Draws, start: int, codes: Words32
) -> None:
    """Codes of a block from r = |v| / norm, at most 1; `linear` = 2^(s + 16)."""
    bits = r.view(np.uint32)
    signs = v.view(np.uint32)
    least = np.uint32(_ONE - (s << 23))
    end = np.float32(_UNIT) / linear
    highest = np.uint32(2 * (_ONE >> 23) + 1)
    tie = np.uint32(_ENDS_IN_ONES << 16)
    ties = np.uint32(0)
    for i in range(BLOCK):
        t = _binade(r[i], bits[i], k[i], linear, end, least)
        ties = max(ties, np.uint32(t << np.uint32(9)))
        positive = np.uint32(highest - np.uint32(np.uint32(t >> np.uint32(23)) << np.uint32(1)))
        code = np.uint32(positive + np.uint32(signs[i] >> np.uint32(31)))
        codes[i] = code if t >= least else np.uint32(0)
    if ties >= tie:
        for i in range(BLOCK):
            if np.uint32(_binade(r[i], bits[i], k[i], linear, end, least) << np.uint32(9)) >= tie:
                codes[i] = _careful_code(v[i], np.float64(r[i]), s, int(np.int64(k[i])), draws, start + i)


@kernel
def quantise(v: Floats, norm: float, s: int, k: Words32, draws: Draws, start: int, r: Floats, codes: Words32) -> None:
    """Codes of the 512 coordinates from `start` on, which are `v`. `r`: 512 of scratch."""
    if norm == 0:
        codes[:] = 0
        return
    if _LOW_NORM <= norm <= _HIGH_NORM:
        factor = np.float32(1.0 / norm)
        for i in range(BLOCK):
            r[i] = min(np.float32(abs(v[i]) * factor), np.float32(1))
        _vector_quantise(v, r, s, np.float32(2.0 ** (s + 16)), k, draws, start, codes)
        return
    for i in range(BLOCK):
        codes[i] = _careful_code(v[i], min(abs(np.float64(v[i])) / norm, 1.0), s, int(np.int64(k[i])), draws, start + i)


@kernel
def code_values(norm: float, s: int, table: Floats) -> None:
    """The value of every code, within float32's range; 0 for codes that are not written."""
    table[:] = 0
    for j in range(s + 1):
        value = np.float32(min(norm * 2.0 ** np.float64(-j), _LARGEST))
        table[1 + 2 * j] = value
        table[2 + 2 * j] = -value


@inlined
def _bucket_norm(x: Floats, kind: int, scratch: Floats) -> np.float32:
    return np.float32(l2_norm(x, scratch) if kind == L2 else max_norm(x))


@inlined
def _halves(words: Words32, k: Words32) -> None:
    """16 random bits for every coordinate."""
    for j in range(HALF):
        k[j] = words[j] & np.uint32(0xFFFF)
    for j in range(HALF):
        k[HALF + j] = words[j] >> np.uint32(16)


@kernel
def encode(x: Floats, grid: Grid, kind: int, norms: Float64s, draws: Draws, packed: Bytes, error: Floats) -> bool:
    """Quantise `x` and pack the codes; False if it is not finite. `norms`: one a bucket, which are written; `kind`: L2 or MAX.

    `error`, unless it is empty, becomes x - decoded, and may be x.
    """
    s, bits, bucket = grid
    words, k, codes = np.empty(HALF, np.uint32), np.empty(BLOCK, np.uint32), np.empty(BLOCK, np.uint32)
    v, r = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32)
    low, high, row = np.empty(BLOCK, np.uint8), np.empty(BLOCK, np.uint8), np.zeros(ROW, np.uint8)
    scratch, table = np.empty(BLOCK + 64, np.float32), np.zeros(TABLE, np.float32)
    used = 0
    for start in range(0, x.size, BLOCK):
        part = x[start : start + BLOCK]
        b = start // bucket
        if start == b * bucket:
            norm = _bucket_norm(x[start : start + bucket], kind, scratch)
            if norm == NOT_FINITE:
                return False
            norms[b] = norm
            if error.size:
                code_values(norms[b], s, table)
        v[part.size :] = 0
        for i in range(part.size):
            v[i] = part[i]
        fill(words, draws.key, draws.stream, start // BLOCK * 64)
        _halves(words, k)
        quantise(v, norms[b], s, k, draws, start, r, codes)
        to_rows(codes, low, high)
        used += pack_block(low, high, part.size, bits, row, packed[used:])
        if error.size:
            rest = error[start : start + BLOCK]
            for i in range(rest.size):
                rest[i] = v[i] - table[codes[i]]
    return True


@kernel
def decode(grid: Grid, norms: Float64s, packed: Bytes, out: Floats, weight: np.float32, add: bool) -> None:
    """out = decoded, or out += weight * decoded. A code that encode does not write counts as 0."""
    s, bits, bucket = grid
    codes, table = np.zeros(BLOCK, np.uint32), np.zeros(TABLE, np.float32)
    low, high = np.zeros(ROW, np.uint8), np.zeros(ROW, np.uint8)
    used = 0
    for start in range(0, out.size, BLOCK):
        part = out[start : start + BLOCK]
        if start % bucket == 0:
            code_values(norms[start // bucket], s, table)
        used += unpack_block(packed[used:], part.size, bits, low, high)
        from_rows(low, high, codes)
        if add:
            for i in range(part.size):
                part[i] += weight * table[codes[i]]
        else:
            for i in range(part.size):
                part[i] = table[codes[i]]
