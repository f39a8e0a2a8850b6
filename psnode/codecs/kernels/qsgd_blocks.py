"""The arithmetic of qsgd on a block of 512 coordinates, as simple loops over scratch memory in the first-level cache.

A code is q + s, from 0 to 2s. The signed level q is v s / norm, rounded at random with the exact expectation: see
psnode.codecs.kernels.fixed_point.

An ordinary norm is 0, or between 2^-50 and 2^50. Buckets with other norms are computed in float64, one coordinate at a time. A
plain block is full, belongs to one bucket with an ordinary norm, and has codes of at most 8 bits. Fast loops exist only for plain
blocks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from psnode.codecs.arrays import Bytes, Float64s, Floats, Words32
from psnode.codecs.kernels.fixed_point import ONES, UNIT, fixed_point, goes_up, is_tie
from psnode.codecs.kernels.jit import inlined, kernel
from psnode.codecs.kernels.planes import BLOCK, Rows, new_rows
from psnode.codecs.rng import HALF, Draws

_LOW_NORM = 2.0**-50
_HIGH_NORM = 2.0**50
_LARGEST = float(np.finfo(np.float32).max)


class Grid(NamedTuple):
    """The number of levels s, the number of bits of a code, and the number of coordinates that share a norm."""

    levels: int
    bits: int
    bucket: int


class BlockSpan(NamedTuple):
    """The position of a block: the coordinates start..start+size-1."""

    start: int
    size: int


class Scratch(NamedTuple):
    """Scratch memory for a block.

    The fields are random words, codes, the fractions of the fixed-point sums, rows of bytes, values, decoded values, factors or
    steps, and 576 values for sums.
    """

    words: Words32
    codes: Words32
    ends: Words32
    rows: Rows
    v: Floats
    y: Floats
    scales: Floats
    lanes: Floats


@inlined
def new_room() -> Scratch:
    """Return scratch memory for one thread."""
    words, codes, ends = np.empty(HALF, np.uint32), np.zeros(BLOCK, np.uint32), np.zeros(BLOCK, np.uint32)
    v, y, scales = np.zeros(BLOCK, np.float32), np.zeros(BLOCK, np.float32), np.zeros(BLOCK, np.float32)
    return Scratch(words, codes, ends, new_rows(), v, y, scales, np.empty(BLOCK + 64, np.float32))


@inlined
def _ordinary(norm: np.float32) -> bool:
    return bool(norm == 0 or _LOW_NORM <= norm <= _HIGH_NORM)


@inlined
def is_plain(span: BlockSpan, grid: Grid, norms: Floats) -> bool:
    """Return True if the block is plain: full, in one bucket with an ordinary norm, and with codes of at most one byte."""
    b = span.start // grid.bucket
    inside = (b + 1) * grid.bucket >= span.start + BLOCK
    return bool(span.size == BLOCK and grid.bits <= 8 and inside and _ordinary(norms[b]))


@inlined
def least_norm(norm: np.float32, dots: Float64s) -> np.float32:
    """Return `norm` times <x, y> / <y, y>, or 0 if y is 0.

    `dots` holds these inner products of a bucket x and its decoded values y.
    """
    return np.float32(min(np.float64(norm) * (dots[0] / dots[1]), _LARGEST)) if dots[1] > 0 else np.float32(0)


@inlined
def factor_of(norm: np.float32, levels: int) -> np.float32:
    """Return 2^16 s / norm, or 0 for a norm of 0. s is `levels`."""
    return np.float32(levels * UNIT / np.float64(norm)) if norm > 0 else np.float32(0)


@inlined
def step_of(norm: np.float32, levels: int) -> np.float32:
    """Return the distance between two levels, norm / s. s is `levels`."""
    return np.float32(norm / np.float32(levels))


@inlined
def _scaled(v: np.float32, factor: np.float32, top: np.float32) -> np.float32:
    """Return v times factor, limited to -top..top."""
    return min(max(v * factor, -top), top)


@inlined
def quantise_plain(v: Floats, factor: np.float32, levels: int, words: Words32, low: Bytes) -> bool:
    """Write the codes of a plain block. Return False if there was a tie.

    Coordinate i < 256 uses the low half of random word i, and coordinate i + 256 the high half.
    """
    top = np.float32(levels * UNIT)
    zero = np.uint32(levels << 16)
    ones = np.uint32(ONES)
    sixteen = np.uint32(16)
    worst = np.uint32(0)
    for i in range(HALF):
        t = fixed_point(_scaled(v[i], factor, top), zero, words[i] & ones)
        u = fixed_point(_scaled(v[HALF + i], factor, top), zero, words[i] >> sixteen)
        worst = max(worst, max(np.uint32(t & ones), np.uint32(u & ones)))
        low[i] = np.uint8(t >> sixteen)
        low[HALF + i] = np.uint8(u >> sixteen)
    return bool(worst != ONES)


@kernel
def settle_ties_plain(v: Floats, factor: np.float32, levels: int, words: Words32, draws: Draws, start: int, low: Bytes) -> None:
    """Settle the ties that `quantise_plain` left, by further random bits. The block begins at coordinate `start`."""
    top = np.float32(levels * UNIT)
    for i in range(BLOCK):
        word = np.uint32(words[i] & np.uint32(ONES)) if i < HALF else np.uint32(words[i - HALF] >> np.uint32(16))
        a = _scaled(v[i], factor, top)
        if is_tie(fixed_point(a, np.uint32(levels << 16), word)) and goes_up(np.float64(a), draws.key, draws.stream, start + i):
            low[i] += np.uint8(1)


@inlined
def values_plain(low: Bytes, levels: int, step: np.float32, y: Floats) -> None:
    """Write the values of the codes of a plain block to `y`.

    A code above 2s, which encode never writes, is read as 2s by every decoder.
    """
    s = np.int32(levels)
    for i in range(BLOCK):
        y[i] = np.float32(min(np.int32(np.int32(low[i]) - s), s)) * step


@inlined
def add_values_plain(low: Bytes, levels: int, step: np.float32, weight: np.float32, out: Floats) -> None:
    """Add weight times the values of a plain block to `out`."""
    s = np.int32(levels)
    for i in range(BLOCK):
        out[i] += weight * (np.float32(min(np.int32(np.int32(low[i]) - s), s)) * step)


@inlined
def _spread(norms: Floats, span: BlockSpan, grid: Grid, encoding: bool, out: Floats) -> bool:
    """Write the factor or the step of every coordinate. It is 0 where the norm is not ordinary.

    Return True if all norms are ordinary.
    """
    ordinary = True
    at = 0
    while at < span.size:
        b = (span.start + at) // grid.bucket
        end = min((b + 1) * grid.bucket - span.start, span.size)
        scale = np.float32(0)
        if _ordinary(norms[b]):
            scale = factor_of(norms[b], grid.levels) if encoding else step_of(norms[b], grid.levels)
        else:
            ordinary = False
        part = out[at:end]
        for i in range(part.size):
            part[i] = scale
        at = end
    return ordinary


@kernel
def quantise(norms: Floats, span: BlockSpan, grid: Grid, draws: Draws, room: Scratch) -> None:
    """Write the codes of a block of any kind, whose values are in room.v.

    After the end of the block, room.v and room.scales are zero, so that the codes after the end mean zero.
    """
    v, factors, ends, codes, words = room.v, room.scales, room.ends, room.codes, room.words
    ordinary = _spread(norms, span, grid, True, factors)
    top = np.float32(grid.levels * UNIT)
    zero = np.uint32(grid.levels << 16)
    worst = np.uint32(0)
    for i in range(HALF):
        t = fixed_point(_scaled(v[i], factors[i], top), zero, words[i] & np.uint32(ONES))
        u = fixed_point(_scaled(v[HALF + i], factors[HALF + i], top), zero, words[i] >> np.uint32(16))
        codes[i] = t >> np.uint32(16)
        codes[HALF + i] = u >> np.uint32(16)
        ends[i] = t & np.uint32(ONES)
        ends[HALF + i] = u & np.uint32(ONES)
        worst = max(worst, max(ends[i], ends[HALF + i]))
    if worst == ONES:
        for i in range(span.size):
            a = np.float64(_scaled(v[i], factors[i], top))
            if ends[i] == ONES and goes_up(a, draws.key, draws.stream, span.start + i):
                codes[i] += np.uint32(1)
    if not ordinary:
        _quantise_wide(norms, span, grid, draws, room)


@kernel
def _quantise_wide(norms: Floats, span: BlockSpan, grid: Grid, draws: Draws, room: Scratch) -> None:
    """Write the codes of the coordinates whose norm is not ordinary. They are computed in float64."""
    top = grid.levels * UNIT
    for i in range(span.size):
        norm = norms[(span.start + i) // grid.bucket]
        if not _ordinary(norm):
            a = min(max(np.float64(room.v[i]) * (top / np.float64(norm)), -top), top)
            half = (room.words[i % HALF] >> (16 * (i // HALF))) & ONES
            t = np.int64(np.floor(a)) + np.int64(half) + (grid.levels << 16)
            if t & ONES == ONES and goes_up(a, draws.key, draws.stream, span.start + i):
                t += 1
            room.codes[i] = t >> 16


@kernel
def values(norms: Floats, span: BlockSpan, grid: Grid, room: Scratch) -> bool:
    """Write the values of the codes of a block of any kind to room.y. Return True if all norms are ordinary."""
    codes, steps, y = room.codes, room.scales, room.y
    ordinary = _spread(norms, span, grid, False, steps)
    s = np.int32(grid.levels)
    for i in range(BLOCK):
        y[i] = np.float32(min(np.int32(np.int32(codes[i]) - s), s)) * steps[i]
    if not ordinary:
        for i in range(span.size):
            norm = norms[(span.start + i) // grid.bucket]
            if not _ordinary(norm):
                q = float(min(int(codes[i]) - grid.levels, grid.levels))
                y[i] = np.float32(min(max(q * np.float64(norm) / grid.levels, -_LARGEST), _LARGEST))
    return ordinary
