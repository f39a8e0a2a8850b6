"""The encoders of one bit a coordinate: signs and sums in one pass, 8192 coordinates at a time in the first-level cache.

Sums are those of psnode.codecs.kernels.trees; the rows of a bucket begin with the bucket.
"""

from __future__ import annotations

import numpy as np

from psnode.codecs.arrays import Bytes, Float64s, Floats, Words, Words32
from psnode.codecs.kernels.finite import all_finite
from psnode.codecs.kernels.jit import inlined, kernel
from psnode.codecs.kernels.memory import AHEAD, copy_to, fetch_row, wide
from psnode.codecs.kernels.norms import fold, fold_16
from psnode.codecs.kernels.parts import BEGIN, NOT_FINITE, STRETCH, PartTable, add_parts
from psnode.codecs.kernels.signbits import ROW, apply, count, pack_rest, pack_row, some, toss
from psnode.codecs.kernels.trees import DOWN, UP, sum_512, tree_of
from psnode.codecs.rng import BLOCK, HALF, fill

PIECE = 32 * HALF
_LANES = 64
_LARGEST = float(np.finfo(np.float32).max)


@inlined
def _positive(value: np.float32) -> np.float32:
    """max(value, 0), but NaN if it is NaN."""
    return np.float32(0) if value < np.float32(0) else value


@inlined
def _part(value: np.float32, sums: int, which: int) -> np.float32:
    """What is summed of a value: of one sum its magnitude, of two max(value, 0) and max(-value, 0)."""
    return abs(value) if sums == 1 else _positive(value if which == 0 else -value)


@inlined
def _magnitudes(w: Floats, i: int) -> np.float32:
    a = (abs(w[i]) + abs(w[64 + i])) + (abs(w[128 + i]) + abs(w[192 + i]))
    b = (abs(w[256 + i]) + abs(w[320 + i])) + (abs(w[384 + i]) + abs(w[448 + i]))
    return np.float32(a + b)


@inlined
def _above(w: Floats, i: int) -> np.float32:
    a = (_positive(w[i]) + _positive(w[64 + i])) + (_positive(w[128 + i]) + _positive(w[192 + i]))
    b = (_positive(w[256 + i]) + _positive(w[320 + i])) + (_positive(w[384 + i]) + _positive(w[448 + i]))
    return np.float32(a + b)


@inlined
def _below(w: Floats, i: int) -> np.float32:
    a = (_positive(-w[i]) + _positive(-w[64 + i])) + (_positive(-w[128 + i]) + _positive(-w[192 + i]))
    b = (_positive(-w[256 + i]) + _positive(-w[320 + i])) + (_positive(-w[384 + i]) + _positive(-w[448 + i]))
    return np.float32(a + b)


@inlined
def _sum_row(w: Floats, sums: Float64s, at: int, lanes: Floats) -> None:
    """Write the sums of the row `w` to sums[at]. `lanes`: 64 float32 of scratch."""
    if sums.shape[1] == 1:
        for i in range(16):
            lanes[i] = (_magnitudes(w, i) + _magnitudes(w, 16 + i)) + (_magnitudes(w, 32 + i) + _magnitudes(w, 48 + i))
        sums[at, 0] = np.float64(fold_16(lanes))
    else:
        for i in range(16):
            lanes[i] = (_above(w, i) + _above(w, 16 + i)) + (_above(w, 32 + i) + _above(w, 48 + i))
        sums[at, 0] = np.float64(fold_16(lanes))
        for i in range(16):
            lanes[i] = (_below(w, i) + _below(w, 16 + i)) + (_below(w, 32 + i) + _below(w, 48 + i))
        sums[at, 1] = np.float64(fold_16(lanes))


@kernel
def _settle_sums(x: Floats, sums: Float64s, lanes: Floats) -> bool:
    """Take those sums of rows of `x` again that left float32's range; False if x is not finite."""
    for at in range((x.size + ROW - 1) // ROW):
        for which in range(sums.shape[1]):
            if not np.isfinite(sums[at, which]):
                row, scaled = x[ROW * at : ROW * at + ROW], np.zeros(ROW, np.float32)
                if not all_finite(row):
                    return False
                for i in range(row.size):
                    scaled[i] = _part(row[i], sums.shape[1], which) * DOWN
                sums[at, which] = UP * np.float64(sum_512(scaled, lanes))
    return True


@kernel
def _settle(key: Words, stream: int, start: int, bits: Bytes, zero: Bytes, coins: Words32) -> None:
    """Draw the signs of the zeros of the piece that begins at coordinate `start`."""
    if some(zero):
        fill(coins, key, stream, start // PIECE * BLOCK)
        toss(bits, zero, coins.view(np.uint8))


@kernel
def _piece(
    x: Floats, parts: PartTable, cursor: int, base: int, bits: Bytes, zero: Bytes, sums: Float64s, lanes: Floats
) -> tuple[bool, int]:
    """Pack the piece from coordinate `base` on, note its zeros; is it finite, and the last result of add_parts.

    The sums of its rows go to `sums`, a dimension for the rows and one for the sums (`_part`). `lanes`: 64 float32 of scratch.
    """
    wide()
    values = x.view(np.uint32)
    lanes[:] = 0
    full, adding = x.size // ROW * ROW, len(parts) > 1
    for row in range(0, full, ROW):
        fetch_row(x, row + AHEAD)
        if adding and row % STRETCH == 0:
            cursor = add_parts(parts, cursor, base + row, base + min(row + STRETCH, x.size))
            if cursor == NOT_FINITE:
                return False, cursor
        pack_row(values, row, bits, zero, row // 8)
        if sums.shape[1]:
            _sum_row(x[row : row + ROW], sums, row // ROW, lanes)
        else:
            w = x[row : row + ROW]
            for i in range(_LANES):
                lanes[i] += _magnitudes(w, i)
    if full < x.size:
        if adding and full % STRETCH == 0:
            cursor = add_parts(parts, cursor, base + full, base + x.size)
            if cursor == NOT_FINITE:
                return False, cursor
        rest = np.zeros(ROW, np.float32)
        copy_to(x[full:], rest)
        pack_rest(rest.view(np.uint32), x.size - full, bits[full // 8 :], zero[full // 8 :])
        if sums.shape[1]:
            _sum_row(rest, sums, full // ROW, lanes)
        else:
            for i in range(_LANES):
                lanes[i] += _magnitudes(rest, i)
    if sums.shape[1]:
        return _settle_sums(x, sums, lanes), cursor
    return bool(np.isfinite(fold(lanes))) or all_finite(x), cursor


@kernel
def _sum_of(x: Floats, row: Floats, sums: Float64s, lanes: Floats) -> float:
    """The sum of |x|, at most 512 values that are finite. `row` (512), `sums` (1, 1): scratch."""
    copy_to(x, row)
    if x.size <= 128:  # what the tree adds to these is 0
        row[x.size : 128] = 0
        for i in range(64):
            lanes[i] = abs(row[i]) + abs(row[64 + i])
        sums[0, 0] = np.float64(fold(lanes))
    else:
        row[x.size :] = 0
        _sum_row(row, sums, 0, lanes)
    if not np.isfinite(sums[0, 0]):
        _settle_sums(x, sums, lanes)
    return float(sums[0, 0])


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
    lanes, row, one = np.empty(_LANES, np.float32), np.empty(ROW, np.float32), np.empty((1, 1), np.float64)
    in_rows = bucket % ROW == 0 or bucket >= x.size  # rows of a bucket are rows of x
    sums = np.empty(((x.size if in_rows else min(bucket, x.size)) + ROW - 1) // ROW, np.float64)  # of all rows, or a bucket's
    of_rows = sums.reshape(sums.size, 1) if in_rows else np.empty((0, 0), np.float64)
    cursor, at, done = BEGIN, 0, 0  # coordinates whose rows are summed, and those in buckets that are closed
    for start in range(0, x.size, PIECE):
        piece = x[start : start + PIECE]
        end, first = start + piece.size, done
        packed = bits[start // 8 : (start + PIECE) // 8]
        found = of_rows[start // ROW :]
        finite, cursor = _piece(piece, parts, cursor, start, packed, zero[: packed.size], found, lanes)
        if not finite:
            return done
        _settle(key, stream, start, packed, zero[: packed.size], coins)
        while done < end:
            closing = min(done + bucket, x.size)
            while not in_rows and at < closing and min(at + ROW, closing) <= end:
                sums[(at - done) // ROW] = _sum_of(x[at : min(at + ROW, closing)], row, one, lanes)
                at = min(at + ROW, closing)
            if closing > end or (at < closing and not in_rows):
                break
            of_bucket = sums[done // ROW if in_rows else 0 :][: (closing - done + ROW - 1) // ROW]
            means[done // bucket] = min(tree_of(of_bucket) / (closing - done), _LARGEST)
            done = closing
        if error.size and done > first:
            closed = means[first // bucket : (done + bucket - 1) // bucket]
            _subtract(bits[first // 8 : (done + 7) // 8], bucket, closed, x[first:done], error[first:done])
    return x.size


@kernel
def signs_and_sums(x: Floats, parts: PartTable, key: Words, stream: int, bits: Bytes, sums: Float64s) -> int:
    """Pack the signs of `x`, write the sums of max(x, 0) and of max(-x, 0) to `sums`; the number of negative signs.

    `parts`: as above; NOT_FINITE if one or x is not finite.
    """
    negatives, cursor = 0, BEGIN
    coins, zero = np.empty(HALF, np.uint32), np.empty(PIECE // 8, np.uint8)
    lanes, of_rows = np.empty(_LANES, np.float32), np.empty(((x.size + ROW - 1) // ROW, 2), np.float64)
    for start in range(0, x.size, PIECE):
        piece = x[start : start + PIECE]
        packed = bits[start // 8 : (start + PIECE) // 8]
        found = of_rows[start // ROW :]
        finite, cursor = _piece(piece, parts, cursor, start, packed, zero[: packed.size], found, lanes)
        if not finite:
            return NOT_FINITE
        _settle(key, stream, start, packed, zero[: packed.size], coins)
        negatives += count(packed)
    sums[0], sums[1] = tree_of(of_rows[:, 0].copy()), tree_of(of_rows[:, 1].copy())
    return negatives
