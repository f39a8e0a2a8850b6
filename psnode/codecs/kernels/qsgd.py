"""The loops of qsgd over blocks of 512 coordinates: one pass over memory, no temporaries but a few blocks of scratch."""

from __future__ import annotations

import numpy as np

from psnode.codecs.arrays import Bytes, Codes, Float64s, Floats, Words, Words32
from psnode.codecs.kernels.jit import inlined, kernel
from psnode.codecs.kernels.memory import AHEAD, fetch_row, fetch_row_to_write, wide
from psnode.codecs.kernels.norms import fold, inner_512, l2_norm, max_norm
from psnode.codecs.kernels.parts import PartTable, add_parts
from psnode.codecs.kernels.planes import BLOCK, ROW, pack_codes, pack_row, unpack_codes, unpack_row
from psnode.codecs.kernels.qsgd_blocks import (
    add_values_plain,
    factor_of,
    is_plain,
    quantise,
    quantise_plain,
    settle_ties_plain,
    step_of,
    values,
    values_plain,
)
from psnode.codecs.rng import HALF, fill


@inlined
def _load(part: Floats, v: Floats) -> None:
    """Copy a block, zeros beyond its end."""
    for i in range(part.size):
        v[i] = part[i]
    for i in range(part.size, BLOCK):
        v[i] = np.float32(0)


@inlined
def _subtract(v: Floats, y: Floats, out: Floats) -> None:
    for i in range(out.size):
        out[i] = v[i] - y[i]


@inlined
def _add_dots(v: Floats, y: Floats, lanes: Floats, ordinary: bool, dots: Float64s) -> None:
    """Add <v, y> and <y, y> of a block to `dots`."""
    if ordinary:
        dots[0] += np.float64(inner_512(v, y, lanes))
        dots[1] += np.float64(inner_512(y, y, lanes))
    else:
        for i in range(BLOCK):
            dots[0] += np.float64(v[i]) * np.float64(y[i])
            dots[1] += np.float64(y[i]) * np.float64(y[i])


@inlined
def _level(low: Bytes, s: np.int32, i: int) -> np.float32:
    return np.float32(np.int32(np.int32(low[i]) - s))


@kernel
def _add_dots_plain(v: Floats, low: Bytes, levels: int, step: np.float32, lanes: Floats, squares: Floats, dots: Float64s) -> None:
    """_add_dots for a plain block, from its levels q: <v, y> = step sum v q, <y, y> = step^2 sum q^2, which is exact."""
    wide()
    s = np.int32(levels)
    for i in range(64):
        a, b, c, d = _level(low, s, i), _level(low, s, 64 + i), _level(low, s, 128 + i), _level(low, s, 192 + i)
        e, f, g, h = _level(low, s, 256 + i), _level(low, s, 320 + i), _level(low, s, 384 + i), _level(low, s, 448 + i)
        first = (v[i] * a + v[64 + i] * b) + (v[128 + i] * c + v[192 + i] * d)
        second = (v[256 + i] * e + v[320 + i] * f) + (v[384 + i] * g + v[448 + i] * h)
        lanes[i] = first + second
        squares[i] = ((a * a + b * b) + (c * c + d * d)) + ((e * e + f * f) + (g * g + h * h))
    dots[0] += np.float64(step) * np.float64(fold(lanes))
    dots[1] += np.float64(step) * np.float64(step) * np.float64(fold(squares))


@kernel
def _lose_plain(v: Floats, low: Bytes, levels: int, step: np.float32, in_place: bool, lost: Floats) -> None:
    """lost = v - values of a plain block."""
    wide()
    if not in_place:
        for i in range(BLOCK):
            lost[i] = v[i]
    add_values_plain(low, levels, step, np.float32(-1), lost)


@kernel
def encode(
    x: Floats,
    levels: int,
    bits: int,
    bucket: int,
    l2: bool,
    key: Words,
    stream: int,
    norms: Floats,
    packed: Words32,
    tail: Bytes,
    symbols: Codes,
    error: Floats,
    dots: Float64s,
    parts: PartTable,
) -> bool:
    """Quantise `x`; False if it is not finite. Outputs of size 0 are not wanted: one of `packed`/`tail` and `symbols` is, and
    at most one of `error` and `dots`.

    norms: one a bucket. packed, tail: the full blocks and the last, incomplete one. error: x - decoded, may be x. dots:
    <x, y> and <y, y>, float64, added to. `parts` are added to their target, the memory of `x`, beforehand.
    """
    wide()
    words, codes, ends = np.empty(HALF, np.uint32), np.zeros(BLOCK, np.uint32), np.zeros(BLOCK, np.uint32)
    low_words, high_words = np.zeros(ROW // 4, np.uint32), np.zeros(ROW // 4, np.uint32)
    low, high = low_words.view(np.uint8), high_words.view(np.uint8)
    v, y, scales = np.zeros(BLOCK, np.float32), np.zeros(BLOCK, np.float32), np.zeros(BLOCK, np.float32)
    scratch = np.empty(BLOCK + 64, np.float32)
    in_place = error.ctypes.data == x.ctypes.data
    known = cursor = 0
    for start in range(0, x.size, BLOCK):
        fetch_row(x, start + AHEAD)
        if error.size:
            fetch_row_to_write(error, start + AHEAD)
        count = min(BLOCK, x.size - start)
        while known * bucket < start + count:
            if parts.starts.size:
                cursor = add_parts(parts, cursor, known * bucket, min((known + 1) * bucket, x.size))
                if cursor < 0:
                    return False
            members = x[known * bucket : min((known + 1) * bucket, x.size)]
            norm = l2_norm(members, scratch) if l2 else max_norm(members)
            if norm < 0:
                return False
            norms[known] = norm
            known += 1
        part = x[start : start + count]
        first = norms[start // bucket]
        plain = is_plain(start, count, bits, bucket, norms)
        if plain and first == 0:  # a layer that had no gradient: zeros need no random bits
            low[:BLOCK] = levels
        else:
            fill(words, key, stream, start // BLOCK * 64)
        if plain and first > 0 and not quantise_plain(part, factor_of(first, levels), levels, words, low):
            settle_ties_plain(part, factor_of(first, levels), levels, words, key, stream, start, low)
        if plain and symbols.size:
            symbols[start : start + BLOCK] = low[:BLOCK]
        elif plain:
            pack_row(low_words, bits, packed[start // 32 * bits :])
        else:
            scales[count:] = 0
            _load(part, v)
            quantise(v, norms, start, count, bucket, levels, words, key, stream, scales, ends, codes)
            for i in range(min(count, symbols.size)):
                symbols[start + i] = codes[i]
            if not symbols.size:
                pack_codes(codes, count, bits, low, low_words, high, high_words, packed[start // 32 * bits :], tail)
        if dots.size and plain:
            _add_dots_plain(part, low, levels, step_of(first, levels), scratch, v, dots)
        elif error.size and plain:
            _lose_plain(part, low, levels, step_of(first, levels), in_place, error[start : start + count])
        elif error.size or dots.size:
            ordinary = values(codes, norms, start, count, bucket, levels, scales, y)
            if error.size:
                _subtract(v, y, error[start : start + count])
            if dots.size:
                _add_dots(v, y, scratch, ordinary, dots)
    return True


@kernel
def decode(
    levels: int,
    bits: int,
    bucket: int,
    norms: Floats,
    packed: Words32,
    tail: Bytes,
    symbols: Codes,
    out: Floats,
    weight: np.float32,
    add: bool,
) -> None:
    """out = decoded, or out += weight * decoded; from `symbols` if it is not empty, else from `packed` and `tail`."""
    codes = np.zeros(BLOCK, np.uint32)
    low_words, high_words = np.zeros(ROW // 4, np.uint32), np.zeros(ROW // 4, np.uint32)
    low, high = low_words.view(np.uint8), high_words.view(np.uint8)
    y, steps = np.empty(BLOCK, np.float32), np.zeros(BLOCK, np.float32)
    for start in range(0, out.size, BLOCK):
        fetch_row_to_write(out, start + AHEAD)
        count = min(BLOCK, out.size - start)
        part = out[start : start + count]
        if is_plain(start, count, bits, bucket, norms):
            step = step_of(norms[start // bucket], levels)
            if symbols.size:
                for i in range(BLOCK):
                    low[i] = np.uint8(symbols[start + i])
            else:
                unpack_row(packed[start // 32 * bits :], bits, low_words)
            if add:
                add_values_plain(low, levels, step, weight, part)
            else:
                values_plain(low, levels, step, part)
            continue
        if symbols.size:
            for i in range(count):
                codes[i] = symbols[start + i]
        else:
            unpack_codes(codes, count, bits, low, low_words, high, high_words, packed[start // 32 * bits :], tail)
        values(codes, norms, start, count, bucket, levels, steps, y)
        if add:
            for i in range(count):
                part[i] += weight * y[i]
        else:
            for i in range(count):
                part[i] = y[i]
