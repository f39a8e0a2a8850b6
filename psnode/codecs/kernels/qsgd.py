"""The loops of qsgd over blocks of 512 coordinates. They need only a few blocks of scratch memory."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from psnode.codecs.arrays import Bytes, Codes, Float64s, Floats, Words32
from psnode.codecs.kernels.cache_hints import AHEAD, copy_to, fetch_row, fetch_row_to_write, wide
from psnode.codecs.kernels.dots import Lost, add_row, put_row, put_row_carefully
from psnode.codecs.kernels.jit import inlined, kernel
from psnode.codecs.kernels.norms import fold, inner_512, l2_norm, max_norm
from psnode.codecs.kernels.parts import BEGIN, NOT_FINITE, STRETCH, PartTable, add_parts
from psnode.codecs.kernels.planes import BLOCK, pack_codes, pack_row, unpack_codes, unpack_row
from psnode.codecs.kernels.qsgd_blocks import (
    BlockSpan,
    Grid,
    Scratch,
    add_values_plain,
    factor_of,
    is_plain,
    least_norm,
    new_room,
    quantise,
    quantise_plain,
    settle_ties_plain,
    step_of,
    values,
    values_plain,
)
from psnode.codecs.rng import Draws, fill


@inlined
def _load(part: Floats, v: Floats) -> None:
    """Copy the coordinates `part` of a block to `v`, and write zeros after them."""
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
    """Add <v, y> and <y, y> to `dots` as _add_dots does, but for a plain block, from its levels q.

    <v, y> is step sum(v q). <y, y> is step^2 sum(q^2), in which the sum is exact.
    """
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
def _add_row_plain(x: Floats, low: Bytes, levels: int, step: np.float32, lanes: Floats, row: int, dots: Float64s) -> None:
    """Write inner products as add_row does, but for a plain block, from its codes. `lanes`: a block of scratch memory."""
    wide()
    s = np.int32(levels)
    for i in range(64):
        a, b = _level(low, s, i) * step, _level(low, s, 64 + i) * step
        c, d = _level(low, s, 128 + i) * step, _level(low, s, 192 + i) * step
        e, f = _level(low, s, 256 + i) * step, _level(low, s, 320 + i) * step
        g, h = _level(low, s, 384 + i) * step, _level(low, s, 448 + i) * step
        first = (x[i] * a + x[64 + i] * b) + (x[128 + i] * c + x[192 + i] * d)
        second = (x[256 + i] * e + x[320 + i] * f) + (x[384 + i] * g + x[448 + i] * h)
        lanes[i] = first + second
        lanes[64 + i] = ((a * a + b * b) + (c * c + d * d)) + ((e * e + f * f) + (g * g + h * h))
    if not put_row(lanes, row, dots):
        values_plain(low, levels, step, lanes)
        put_row_carefully(x, lanes, row, dots)


@kernel
def _lose_plain(v: Floats, low: Bytes, levels: int, step: np.float32, in_place: bool, lost: Floats) -> None:
    """Write v minus the decoded values of a plain block to `lost`."""
    wide()
    if not in_place:
        for i in range(BLOCK):
            lost[i] = v[i]
    add_values_plain(low, levels, step, np.float32(-1), lost)


class Form(NamedTuple):
    """The kind of norm of a bucket: the L2 norm (`l2`) or the largest magnitude.

    If `fits`, the norm is multiplied by the factor that gives the least squared error.
    """

    l2: bool
    fits: bool


class Body(NamedTuple):
    """The norms of the buckets, and the codes, which are either packed or one per entry of `symbols`.

    Packed codes of full blocks are in `packed`, and those of an incomplete last block in `tail`. The arrays that are not used
    are empty.
    """

    norms: Floats
    packed: Words32
    tail: Bytes
    symbols: Codes


@kernel
def _code_any(part: Floats, span: BlockSpan, grid: Grid, draws: Draws, body: Body, room: Scratch) -> None:
    """Write the codes of a block of any kind to room.codes and to the body."""
    fill(room.words, draws.key, draws.stream, span.start // BLOCK * 64)
    room.scales[span.size :] = 0
    _load(part, room.v)
    quantise(body.norms, span, grid, draws, room)
    for i in range(min(span.size, body.symbols.size)):
        body.symbols[span.start + i] = room.codes[i]
    if not body.symbols.size:
        pack_codes(room.codes, span.size, grid.bits, room.rows, body.packed[span.start // 32 * grid.bits :], body.tail)


@kernel
def _lose_any(lost: Floats, span: BlockSpan, grid: Grid, norms: Floats, fits: bool, dots: Float64s, room: Scratch) -> None:
    """Write v minus the decoded values of a block of any kind to `lost`, or add inner products to `dots` if they are wanted."""
    ordinary = values(norms, span, grid, room)
    if fits:
        _add_dots(room.v, room.y, room.lanes, ordinary, dots)
    elif dots.size:
        add_row(room.v, room.y, span.start // BLOCK, dots)
    else:
        _subtract(room.v, room.y, lost)


@kernel
def _lose_bucket(x: Floats, first: int, stop: int, grid: Grid, body: Body, error: Floats, room: Scratch) -> None:
    """Write x - decoded to `error` for the coordinates first..stop-1. `first` is a multiple of 512."""
    lost = error[first:stop]
    if error.ctypes.data != x.ctypes.data:
        copy_to(x[first:stop], lost)
    _read(grid, body, first, np.float32(-1), True, lost, room)


@kernel
def encode(x: Floats, parts: PartTable, grid: Grid, form: Form, draws: Draws, body: Body, lost: Lost) -> int:
    """Quantise `x`, after adding `parts` to its memory. Return the number of coordinates coded, which is all if they are finite.

    The error is written for the coordinates coded. At most one output of `lost` may be requested. If norms are fitted, `dots`
    must be two zeros, and serves as scratch memory. Named tuples of arrays are unpacked before the loop, because passing one to
    a function counts references to its arrays.
    """
    wide()
    room = new_room()
    words, low, low_words, v, lanes = room.words, room.rows.low, room.rows.low_words, room.v, room.lanes
    norms, packed, symbols, error, dots = body.norms, body.packed, body.symbols, lost.error, lost.dots
    levels, bits, bucket = grid.levels, grid.bits, grid.bucket
    in_place = error.ctypes.data == x.ctypes.data
    known, cursor, norm, added = 0, BEGIN, 0.0, 0 if len(parts) > 1 else x.size
    # Norms are computed at most one bucket ahead of the codes. A stretch, to which parts are added, is coded while it is cached.
    for start in range(0, x.size, BLOCK):
        fetch_row(x, start + AHEAD)
        if error.size:
            fetch_row_to_write(error, start + AHEAD)
        end = min(start + BLOCK, x.size)
        while known * bucket < end:
            if added < min((known + 1) * bucket, x.size):
                stop = min(max((known + 1) * bucket, added + STRETCH), x.size)
                cursor = add_parts(parts, cursor, added, stop)
                added = stop
            if cursor != NOT_FINITE:
                members = x[known * bucket : min((known + 1) * bucket, x.size)]
                norm = l2_norm(members, lanes) if form.l2 else max_norm(members)
            if cursor == NOT_FINITE or norm < 0:
                return start // bucket * bucket if form.fits else start
            norms[known] = norm
            known += 1
        part, b, span = x[start:end], start // bucket, BlockSpan(start, end - start)
        first = norms[b]
        # Plain: a full block inside one bucket, with an ordinary norm and codes of at most a byte. Other blocks take slower
        # loops.
        plain = is_plain(span, grid, norms)
        if plain:
            if first == 0:  # zeros, for example of a layer without a gradient, need no random bits
                low[:BLOCK] = levels
            else:
                fill(words, draws.key, draws.stream, start // BLOCK * 64)
                if not quantise_plain(part, factor_of(first, levels), levels, words, low):
                    settle_ties_plain(part, factor_of(first, levels), levels, words, draws, start, low)
            if symbols.size:
                copy_to(low[:BLOCK], symbols[start : start + BLOCK])
            else:
                pack_row(low_words, bits, packed[start // 32 * bits :])
            if form.fits:
                _add_dots_plain(part, low, levels, step_of(first, levels), lanes, v, dots)
            elif dots.size:
                _add_row_plain(part, low, levels, step_of(first, levels), lanes, start // BLOCK, dots)
            elif error.size:
                _lose_plain(part, low, levels, step_of(first, levels), in_place, error[start:end])
        else:
            _code_any(part, span, grid, draws, body, room)
            if dots.size or error.size:
                _lose_any(error[start:end], span, grid, norms, form.fits, dots, room)
        if form.fits and (end % bucket == 0 or end == x.size):
            norms[b] = least_norm(first, dots)
            dots[:] = 0
            if error.size and bucket == BLOCK and plain and is_plain(span, grid, norms):
                _lose_plain(part, low, levels, step_of(norms[b], levels), in_place, error[start:end])
            elif error.size:
                _lose_bucket(x, b * bucket, end, grid, body, error, room)
    return x.size


@kernel
def _read(grid: Grid, body: Body, first: int, weight: np.float32, adding: bool, out: Floats, room: Scratch) -> None:
    """Write the decoded values from coordinate `first` on to `out`, or add `weight` times these values to `out` if `adding`.

    `first` is a multiple of 512.
    """
    norms, packed, symbols, low, low_words = body.norms, body.packed, body.symbols, room.rows.low, room.rows.low_words
    codes, y, levels, bits = room.codes, room.y, grid.levels, grid.bits
    for at in range(0, out.size, BLOCK):
        fetch_row_to_write(out, at + AHEAD)
        start = first + at
        span = BlockSpan(start, min(BLOCK, out.size - at))
        part = out[at : at + span.size]
        if is_plain(span, grid, norms):
            step = step_of(norms[start // grid.bucket], levels)
            if symbols.size:
                for i in range(BLOCK):
                    low[i] = np.uint8(symbols[start + i])
            else:
                unpack_row(packed[start // 32 * bits :], bits, low_words)
            if adding:
                add_values_plain(low, levels, step, weight, part)
            else:
                values_plain(low, levels, step, part)
            continue
        if symbols.size:
            for i in range(span.size):
                codes[i] = symbols[start + i]
        else:
            unpack_codes(codes, span.size, bits, room.rows, packed[start // 32 * bits :], body.tail)
        values(norms, span, grid, room)
        if adding:
            for i in range(span.size):
                part[i] += weight * y[i]
        else:
            for i in range(span.size):
                part[i] = y[i]


@kernel
def decode(grid: Grid, body: Body, out: Floats, weight: np.float32, adding: bool) -> None:
    """Write the decoded values to `out`, or add `weight` times these values to `out` if `adding`.

    Codes are read from the symbols unless these are empty.
    """
    _read(grid, body, 0, weight, adding, out, new_room())
