"""Coding of all superblocks of a stream in one kernel, and decoding in another, because small arrays have many small superblocks.

Superblocks are rows of a table, whose columns have names in this module. One `Shelf` holds the designs of all superblocks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from psnode.codecs import rng
from psnode.codecs.arrays import Float64s, Floats, Int32s, Int64s, Words
from psnode.codecs.kernels.cache_hints import wide
from psnode.codecs.kernels.jit import inlined, kernel
from psnode.codecs.kernels.norms import l2_norm
from psnode.codecs.polarcodes.lanes import Llrs, Masks
from psnode.codecs.polarcodes.range_reader import WordReader, ended_well
from psnode.codecs.polarcodes.range_writer import Writer, finish_writing
from psnode.codecs.polarcodes.schedule import Steps
from psnode.codecs.polarcodes.successive_cancellation import Shared, decode_level, encode_level
from psnode.codecs.polarcodes.superblocks import SCALED
from psnode.codecs.polarcodes.symbols import (
    CELL_BITS,
    Cells,
    cells_of,
    close_up,
    inner_products,
    look_up_llrs,
    look_up_priors,
    mark,
    values_of,
)
from psnode.codecs.polarcodes.vectors import LANES

START, STOP, LOG_LENGTH, WIDTH, DESIGN, LEVELS, RAW, CODED, LIVE, COLUMNS = range(10)  # LIVE: 1 if a value is not zero
STREAM = 21  # the stream of the random words of level 0; level l has STREAM + 256 l
EXTRA = 96  # bits per lane by which a stream may exceed one bit per free bit; 32 of them are for its end
SMALLEST = 2.0**-100  # the least root mean square that does not count as 0, so that scales are normal numbers
_BARE: int = np.int64(0)  # type: ignore[assignment]  # the shift of cells that have no bits of x
_HUGE = float(np.finfo(np.float32).max)
_LEAST = np.finfo(np.float32).smallest_subnormal
_MOST = 1.02  # largest scale, relative to the channel's own; outliers, which are corrected later, must not increase it
# Columns of a level: its steps for writing and for reading, rows of raw bits, random words, 1 if the whole level is flat, and the
# offsets of its tables.
_FIRST, _LAST, _FIRST_READ, _LAST_READ, _RAW_ROWS, _DRAWN, _FLAT, _POSTERIOR, _PRIOR = range(9)


class Shelf(NamedTuple):
    """The designs in use: the steps of all levels, the columns of each level, and the LLR tables of all channels."""

    steps: Steps
    levels: Int64s
    posterior: Llrs
    prior: Llrs


class Workspace(NamedTuple):
    """Scratch for a superblock of n rows.

    The fields are the cells, 4 n rows of LLRs (2 n for a reader), n + 1 rows of bits, the raw rows, and two arrays for sums of
    lanes.
    """

    cells: Cells
    llrs: Llrs
    bits: Masks
    rows: Masks
    sums: Floats
    squares: Int32s


@kernel
def measure(x: Floats, blocks: Int64s, scratch: Floats, sizes: Float64s) -> None:
    """Write the root mean square of each piece to `sizes`. A piece consists of the values that share a scale.

    A root mean square is negative if a value is not finite, and infinite if the norm exceeds float32. `scratch`: 576 float32.
    """
    at = 0
    for b in range(blocks.shape[0]):
        for start in range(blocks[b, START], blocks[b, STOP], SCALED):
            piece = x[start : min(start + SCALED, blocks[b, STOP])]
            norm = l2_norm(piece, scratch)
            sizes[at] = np.inf if norm >= _HUGE else norm / np.sqrt(np.float64(piece.size))
            at += 1


@inlined
def _pack(rows: Masks, count: int, lanes: int, out: Masks, at: int) -> None:
    """Append the low `lanes` bits of rows[:count] to `out`, from bit `at` on. `out` must be 0 from this bit on."""
    used = np.uint32((1 << lanes) - 1)
    for i in range(count):
        bit = at + i * lanes
        word = np.uint64(rows[i] & used) << np.uint64(bit & 31)
        out[bit >> 5] |= np.uint32(word)
        out[(bit >> 5) + 1] |= np.uint32(word >> np.uint64(32))


@inlined
def _unpack(data: Masks, at: int, count: int, lanes: int, rows: Masks) -> None:
    """Read `count` rows of `lanes` bits from `data`, as _pack has written them. `data` is one word longer than the bits."""
    if lanes == LANES and at & 31 == 0:
        for i in range(count):
            rows[i] = data[(at >> 5) + i]
    else:
        used = np.uint64((1 << lanes) - 1)
        for i in range(count):
            bit = at + i * lanes
            word = np.uint64(data[bit >> 5]) | (np.uint64(data[(bit >> 5) + 1]) << np.uint64(32))
            rows[i] = np.uint32((word >> np.uint64(bit & 31)) & used)


@kernel
def draw(key: Words, stream: int, first: int, count: int, out: Masks) -> None:
    """Write `count` random words of `stream`, from call `first` on, to `out`. The count is rounded up to a multiple of 256."""
    wide()
    for start in range(0, count, rng.HALF):
        rng.fill_here(out[start : start + rng.HALF], key, stream, first + start // 4)


@inlined
def _scale_of(x: Floats, size: float, energy: float, xy: float, yy: float, count: int, rotated: bool) -> np.float32:
    """Return the scale c for which c y is nearest to `x`, where y are the points to which `x` is coded.

    c is never 0, and is limited so that x - c y stays finite. For rotated values, c is size ||x||^2 / <x, y> instead, or less
    if this could give values beyond the largest float32.
    """
    if rotated:
        best = size * energy / max(xy, SMALLEST * yy)
        if best * np.sqrt(yy) > _HUGE / 2:
            best = max(_HUGE - size * np.sqrt(x.size), 0.0) / (2 * np.sqrt(yy))
    else:
        best = max(xy / yy * size, 0.0)
        if best * count > _HUGE:
            top = 0.0
            for i in range(x.size):
                top = max(top, abs(np.float64(x[i])))
            best = min(best, 0.99 * max(_HUGE - top, 0.0) / count)
    found = np.float32(best)
    return found if found > _LEAST else _LEAST


@kernel
def write_blocks(
    x: Floats,
    blocks: Int64s,
    steps_between: Float64s,
    sizes: Float64s,
    energies: Float64s,
    shelf: Shelf,
    key: Words,
    room: Workspace,
    shared: Shared,
    writer: Writer,
    scales: Floats,
    raw: Masks,
    decoded: Floats,
    capped: bool,
) -> int:
    """Code the live superblocks of finite `x`: write `scales`, bits to `raw`, and words. Return the number of words.

    `steps_between` is the distance between the channel's points, for each superblock. `sizes` is the root mean square of each
    piece (the values that share a scale), or 0 for zeros. If the values in `x` have been divided by these and rotated, `energies`
    holds the energy of each piece. Otherwise `energies` is empty. `decoded` is overwritten with the decoded values, unless it
    is empty. `scales`, `raw` and `decoded` must hold zeros. `capped` limits scales to those that fit the channel.
    """
    steps, levels, posteriors, priors = shelf
    cells, llrs, bits, rows, sums, squares = room
    noise = shared.noise
    coder_lanes = writer.places[0] // 2
    left: Any = np.int64(0)  # a plain 0 would be a type of its own in Numba, and a second kernel would be compiled
    for b in range(blocks.shape[0]):
        left += blocks[b, CODED] * blocks[b, LIVE]
    allowed = left + EXTRA * coder_lanes  # when these bits are used up, encode_level takes the likelier bits
    rotated = energies.size > 0
    at, scale = 0, 0
    for b in range(blocks.shape[0]):
        begin, stop, lanes = blocks[b, START], blocks[b, STOP], blocks[b, WIDTH]
        pieces = (stop - begin + SCALED - 1) // SCALED
        length, count = 1 << blocks[b, LOG_LENGTH], 1 << blocks[b, LEVELS]
        here = cells[: LANES * length]
        if blocks[b, LIVE]:
            for p in range(pieces):
                piece = x[begin + p * SCALED : min(begin + (p + 1) * SCALED, stop)]
                spread = 1.0 if rotated else sizes[scale + p]
                cells_of(piece, spread, here[p * SCALED : (p + 1) * SCALED], lanes)
            # Multilevel coding: the bits of a point's label, level after level, each given the levels before it.
            for level in range(blocks[b, LEVELS]):
                row = blocks[b, DESIGN] + level
                look_up_llrs(posteriors[levels[row, _POSTERIOR] :], here, llrs)
                if not levels[row, _FLAT]:
                    look_up_priors(priors[levels[row, _PRIOR] :], here, CELL_BITS, llrs[2 * here.size :])
                draw(key, STREAM + 256 * level, begin, levels[row, _DRAWN], noise)
                first, last = levels[row, _FIRST], levels[row, _LAST]
                left = encode_level(steps, first, last, llrs, 2 * length, bits, shared, writer, rows, lanes, left, allowed)
                _pack(rows, levels[row, _RAW_ROWS], lanes, raw, at)
                at += levels[row, _RAW_ROWS] * lanes
                mark(here, bits, CELL_BITS + level)
            close_up(here, lanes)
            for p in range(pieces):
                start = begin + p * SCALED
                end = min(start + SCALED, stop)
                piece, part, size = x[start:end], here[p * SCALED :], sizes[scale + p]
                if size > 0:
                    spread = 1.0 if rotated else size
                    energy = energies[scale + p] if rotated else 0.0
                    xy, yy = inner_products(piece, spread, part, CELL_BITS, count, lanes, sums, squares)
                    own = _scale_of(piece, size, energy, xy, yy, count, rotated)
                    if capped:
                        own = np.float32(min(np.float64(own), _MOST * size * steps_between[b] / 2))
                    scales[scale + p] = own
                # Decode with the stored float32 scale, because the reader knows only this scale.
                if decoded.size:
                    values_of(part, CELL_BITS, count, scales[scale + p], decoded[start:end])
        scale += pieces
    return finish_writing(writer, coder_lanes)


@kernel
def read_blocks(
    blocks: Int64s,
    shelf: Shelf,
    key: Words,
    room: Workspace,
    shared: Shared,
    reader: WordReader,
    scales: Floats,
    raw: Masks,
    out: Floats,
    coder_lanes: int,
    rotated: bool,
) -> bool:
    """Overwrite `out` with the values of the live superblocks, or with integer multiples of the points if `rotated`.

    Return True if the stream ended correctly.
    """
    steps, levels, _, priors = shelf
    cells, llrs, bits, rows, _, _ = room
    noise = shared.noise
    at, scale = 0, 0
    for b in range(blocks.shape[0]):
        begin, stop, lanes = blocks[b, START], blocks[b, STOP], blocks[b, WIDTH]
        pieces = (stop - begin + SCALED - 1) // SCALED
        length, count = 1 << blocks[b, LOG_LENGTH], 1 << blocks[b, LEVELS]
        here = cells[: LANES * length]
        if blocks[b, LIVE]:
            for i in range(here.size):
                here[i] = 0
            for level in range(blocks[b, LEVELS]):
                row = blocks[b, DESIGN] + level
                if not levels[row, _FLAT]:
                    look_up_priors(priors[levels[row, _PRIOR] :], here, _BARE, llrs)
                _unpack(raw, at, levels[row, _RAW_ROWS], lanes, rows)
                at += levels[row, _RAW_ROWS] * lanes
                draw(key, STREAM + 256 * level, begin, levels[row, _DRAWN], noise)
                first, last = levels[row, _FIRST_READ], levels[row, _LAST_READ]
                decode_level(steps, first, last, llrs, bits, shared, reader, rows, lanes)
                mark(here, bits, level)
            close_up(here, lanes)
            for p in range(pieces):
                start = begin + p * SCALED
                half = np.float32(1) if rotated else scales[scale + p]
                values_of(here[p * SCALED :], _BARE, count, half, out[start : min(start + SCALED, stop)])
        scale += pieces
    return reader.place[0] == reader.place[1] and ended_well(reader.state, coder_lanes)
