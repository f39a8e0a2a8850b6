"""The encoders of one bit a coordinate: signs and sums in one pass, 8192 coordinates at a time in the first-level cache.

Sums have a fixed order. In every piece of 8192 coordinates (and bucket) lane l of 64 adds coordinates l mod 64 in float32,
eight rows at a time by a tree; the 64 lanes are folded to one, and the pieces are added in float64. A sum that is not finite
shows that a coordinate is not, or that float32 overflowed: then it is taken again, in float64.
"""

from __future__ import annotations

import numpy as np

from psnode.codecs.arrays import Bytes, Float64s, Floats, Words, Words32
from psnode.codecs.kernels.jit import inlined, kernel
from psnode.codecs.kernels.memory import AHEAD, copy_to, fetch_row, wide
from psnode.codecs.kernels.norms import fold
from psnode.codecs.kernels.parts import BEGIN, NOT_FINITE, STRETCH, PartTable, add_parts
from psnode.codecs.kernels.signbits import ROW, apply, count, pack_rest, pack_row, some, toss
from psnode.codecs.rng import BLOCK, HALF, fill

PIECE = 32 * HALF
_LANES = 64
_LARGEST = float(np.finfo(np.float32).max)


@inlined
def _positive(value: np.float32) -> np.float32:
    """max(value, 0), but NaN if it is NaN."""
    return np.float32(0) if value < np.float32(0) else value


@inlined
def _add_magnitudes(w: Floats, lanes: Floats) -> None:
    for i in range(_LANES):
        a = (abs(w[i]) + abs(w[64 + i])) + (abs(w[128 + i]) + abs(w[192 + i]))
        b = (abs(w[256 + i]) + abs(w[320 + i])) + (abs(w[384 + i]) + abs(w[448 + i]))
        lanes[i] += a + b


@inlined
def _add_positive(w: Floats, lanes: Floats) -> None:
    for i in range(_LANES):
        a = (_positive(w[i]) + _positive(w[64 + i])) + (_positive(w[128 + i]) + _positive(w[192 + i]))
        b = (_positive(w[256 + i]) + _positive(w[320 + i])) + (_positive(w[384 + i]) + _positive(w[448 + i]))
        lanes[i] += a + b


@inlined
def _add_negative(w: Floats, lanes: Floats) -> None:
    for i in range(_LANES):
        a = (_positive(-w[i]) + _positive(-w[64 + i])) + (_positive(-w[128 + i]) + _positive(-w[192 + i]))
        b = (_positive(-w[256 + i]) + _positive(-w[320 + i])) + (_positive(-w[384 + i]) + _positive(-w[448 + i]))
        lanes[i] += a + b


@kernel
def _settle(key: Words, stream: int, start: int, bits: Bytes, zero: Bytes, coins: Words32) -> None:
    """Draw the signs of the zeros of the piece that begins at coordinate `start`."""
    if some(zero):
        fill(coins, key, stream, start // PIECE * BLOCK)
        toss(bits, zero, coins.view(np.uint8))


@kernel
def _piece(x: Floats, parts: PartTable, cursor: int, base: int, bits: Bytes, zero: Bytes, lanes: Floats) -> tuple[float, int]:
    """Pack the piece from coordinate `base` on, note its zeros; the sum of |x|, and the last result of add_parts."""
    wide()
    values = x.view(np.uint32)
    lanes[:] = 0
    full, adding = x.size // ROW * ROW, len(parts) > 1
    for row in range(0, full, ROW):
        fetch_row(x, row + AHEAD)
        if adding and row % STRETCH == 0:
            cursor = add_parts(parts, cursor, base + row, base + min(row + STRETCH, x.size))
            if cursor == NOT_FINITE:
                return 0.0, cursor
        pack_row(values, row, bits, zero, row // 8)
        _add_magnitudes(x[row : row + ROW], lanes)
    if full < x.size:
        if adding and full % STRETCH == 0:
            cursor = add_parts(parts, cursor, base + full, base + x.size)
            if cursor == NOT_FINITE:
                return 0.0, cursor
        rest = np.zeros(ROW, np.float32)
        copy_to(x[full:], rest)
        pack_rest(rest.view(np.uint32), x.size - full, bits[full // 8 :], zero[full // 8 :])
        _add_magnitudes(rest, lanes)
    return np.float64(fold(lanes)), cursor


@kernel
def _signed_piece(
    x: Floats, parts: PartTable, cursor: int, base: int, bits: Bytes, zero: Bytes, plus: Floats, minus: Floats
) -> tuple[float, float, int]:
    """As _piece; the sums of max(x, 0) and max(-x, 0), and the cursor."""
    wide()
    values = x.view(np.uint32)
    plus[:] = 0
    minus[:] = 0
    full, adding = x.size // ROW * ROW, len(parts) > 1
    for row in range(0, full, ROW):
        fetch_row(x, row + AHEAD)
        if adding and row % STRETCH == 0:
            cursor = add_parts(parts, cursor, base + row, base + min(row + STRETCH, x.size))
            if cursor == NOT_FINITE:
                return 0.0, 0.0, cursor
        pack_row(values, row, bits, zero, row // 8)
        _add_positive(x[row : row + ROW], plus)
        _add_negative(x[row : row + ROW], minus)
    if full < x.size:
        if adding and full % STRETCH == 0:
            cursor = add_parts(parts, cursor, base + full, base + x.size)
            if cursor == NOT_FINITE:
                return 0.0, 0.0, cursor
        rest = np.zeros(ROW, np.float32)
        copy_to(x[full:], rest)
        pack_rest(rest.view(np.uint32), x.size - full, bits[full // 8 :], zero[full // 8 :])
        _add_positive(rest, plus)
        _add_negative(rest, minus)
    return np.float64(fold(plus)), np.float64(fold(minus)), cursor


@kernel
def _magnitude(x: Floats, lanes: Floats) -> float:
    """The sum of |x|."""
    lanes[:] = 0
    full = x.size // ROW * ROW
    for row in range(0, full, ROW):
        _add_magnitudes(x[row : row + ROW], lanes)
    for i in range(full, x.size):
        lanes[i % _LANES] += abs(x[i])
    return np.float64(fold(lanes))


@kernel
def _mean(x: Floats, total: float) -> float:
    """The mean of |x|, whose sum is `total` unless that is not finite; NaN if x is not finite."""
    if not np.isfinite(total):  # float32 overflowed, or x is not finite
        total = 0.0
        for i in range(x.size):
            total += abs(np.float64(x[i]))
    mean = total / x.size
    return min(mean, _LARGEST) if np.isfinite(mean) else np.nan


@kernel
def _subtract(bits: Bytes, bucket: int, levels: Floats, x: Floats, error: Floats) -> None:
    """error = x - level of its bucket with the sign."""
    apply(bits, bucket, levels, -levels, x, error)


@kernel
def signs_and_means(
    x: Floats, parts: PartTable, bucket: int, key: Words, stream: int, bits: Bytes, means: Floats, error: Floats
) -> int:
    """Pack the signs of `x`, write the mean of |x| of every bucket to `means`; the coordinates done: all if x is finite.

    `parts` are added to their target, the memory of `x`, beforehand. `error`, if it is not empty, receives x - decoded of the
    coordinates done and may be x; `bucket` must then be a multiple of 64 or at least x.size. A bucket that fits into the cache is
    read from memory once.
    """
    coins, zero = np.empty(HALF, np.uint32), np.empty(PIECE // 8, np.uint8)
    lanes = np.empty(_LANES, np.float32)
    cursor, magnitude, done = BEGIN, 0.0, 0  # of the bucket that is open; coordinates in buckets that are closed
    for start in range(0, x.size, PIECE):
        piece = x[start : start + PIECE]
        end = start + piece.size
        packed = bits[start // 8 : (start + PIECE) // 8]
        whole, cursor = _piece(piece, parts, cursor, start, packed, zero[: packed.size], lanes)
        if cursor == NOT_FINITE:
            return done
        _settle(key, stream, start, packed, zero[: packed.size], coins)
        at, first = start, done
        while at < end:
            stop = min(done + bucket, end)
            magnitude += whole if stop - at == piece.size else _magnitude(x[at:stop], lanes)
            if stop == min(done + bucket, x.size):
                mean = _mean(x[done:stop], magnitude)
                if np.isnan(mean):
                    return first
                means[done // bucket] = mean
                magnitude, done = 0.0, stop
            at = stop
        if error.size and done > first:
            closed = means[first // bucket : (done + bucket - 1) // bucket]
            _subtract(bits[first // 8 : (done + 7) // 8], bucket, closed, x[first:done], error[first:done])
    return x.size


@kernel
def _sums(x: Floats) -> tuple[float, float]:
    """The sums of max(x, 0) and max(-x, 0) in float64; one of them is not finite if x is not."""
    plus, minus = 0.0, 0.0
    for i in range(x.size):
        value = np.float64(x[i])
        if value < 0:
            minus -= value
        else:
            plus += value
    return plus, minus


@kernel
def signs_and_sums(x: Floats, parts: PartTable, key: Words, stream: int, bits: Bytes, sums: Float64s) -> int:
    """Pack the signs of `x`, add the sums of max(x, 0) and of max(-x, 0) to `sums`; the number of negative signs.

    `parts`: as above; NOT_FINITE if one is not finite.
    """
    negatives, cursor = 0, BEGIN
    coins, zero = np.empty(HALF, np.uint32), np.empty(PIECE // 8, np.uint8)
    plus, minus = np.empty(_LANES, np.float32), np.empty(_LANES, np.float32)
    for start in range(0, x.size, PIECE):
        piece = x[start : start + PIECE]
        packed = bits[start // 8 : (start + PIECE) // 8]
        a, b, cursor = _signed_piece(piece, parts, cursor, start, packed, zero[: packed.size], plus, minus)
        if cursor == NOT_FINITE:
            return NOT_FINITE
        if not np.isfinite(a + b):
            a, b = _sums(piece)
        _settle(key, stream, start, packed, zero[: packed.size], coins)
        sums[0] += a
        sums[1] += b
        negatives += count(packed)
    return negatives
