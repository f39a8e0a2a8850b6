"""A vector as one stream: scales, raw bits, and the words of one coder for all of its superblocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from psnode.codecs import rng
from psnode.codecs.arrays import Floats, Words, Words16, readonly
from psnode.codecs.kernels.jit import kernel
from psnode.codecs.kernels.moments import root_mean_square
from psnode.codecs.polarcodes import designs, rotation, symbols
from psnode.codecs.polarcodes.channel import chances, logistic
from psnode.codecs.polarcodes.lanes import Masks
from psnode.codecs.polarcodes.layout import SCALED, Superblock
from psnode.codecs.polarcodes.reader import ended_well, reader
from psnode.codecs.polarcodes.schedule import Schedule
from psnode.codecs.polarcodes.symbols import CELL_BITS
from psnode.codecs.polarcodes.trees import Shared, Trees, decode_level, encode_level
from psnode.codecs.polarcodes.vectors import LANES
from psnode.codecs.polarcodes.writer import finish_writing, writer

Scales = Floats

NOT_FINITE = -1
STREAM = 21  # of random words: that of level l is STREAM + 256 l
_SMALLEST = 2.0**-100  # root mean square that is told from 0: scales are normal numbers then
_HUGE = float(np.finfo(np.float32).max)
_LEAST = np.finfo(np.float32).smallest_subnormal
_MOST = 1.02  # of the channel's own scale: values far out, which are seen to later, do not stretch the others
_EXTRA = 64  # bits a lane that a stream may exceed one bit a free bit by


class Extent(NamedTuple):
    """Sizes of a stream that follow from its scales: rows of raw bits and of coded bits, weighted with their lanes; lanes of
    the coder.
    """

    raw: int
    coded: int
    lanes: int


def extent(blocks: Sequence[Superblock], live: Sequence[bool]) -> Extent:
    """Of the superblocks that are `live`: those with a scale that is not 0."""
    raw = coded = lanes = 0
    for block, alive in zip(blocks, live, strict=True):
        if alive:
            levels = designs.schedules(block.rate, block.log_length)
            raw += block.lanes * sum(level.raw for level in levels)
            coded += block.lanes * sum(level.coded for level in levels)
            lanes = max(lanes, block.lanes if any(level.coded for level in levels) else 0)
    return Extent(raw, coded, lanes)


def allowed_words(found: Extent) -> int:
    """The most words of a coder's stream."""
    return (allowed_bits(found) + 15) // 16 + 4 * found.lanes if found.lanes else 0


def allowed_bits(found: Extent) -> int:
    """Bits after which a writer gives in to the prior."""
    return found.coded + (32 + _EXTRA) * found.lanes


@kernel
def pack(rows: Masks, count: int, lanes: int, out: Masks, at: int) -> None:
    """Append the low `lanes` bits of rows[:count] to a string of bits, from bit `at` of `out` on, which is 0 there."""
    if lanes == LANES and at % 32 == 0:
        out[at // 32 : at // 32 + count] = rows[:count]
        return
    used = np.uint32((1 << lanes) - 1)
    for i in range(count):
        word = np.uint64(rows[i] & used) << np.uint64(at & 31)
        out[at >> 5] |= np.uint32(word & np.uint64(0xFFFFFFFF))
        if (at & 31) + lanes > 32:
            out[(at >> 5) + 1] |= np.uint32(word >> np.uint64(32))
        at += lanes


@kernel
def unpack(data: Masks, at: int, count: int, lanes: int, rows: Masks) -> None:
    """The inverse of pack."""
    if lanes == LANES and at % 32 == 0:
        rows[:count] = data[at // 32 : at // 32 + count]
        return
    used = np.uint64((1 << lanes) - 1)
    for i in range(count):
        word = np.uint64(data[at >> 5])
        if (at & 31) + lanes > 32:
            word |= np.uint64(data[(at >> 5) + 1]) << np.uint64(32)
        rows[i] = np.uint32((word >> np.uint64(at & 31)) & used)
        at += lanes


@kernel
def draw(key: Words, stream: int, first: int, out: Masks) -> None:
    """out.size / 256 blocks of random words of `stream`, from call `first` on."""
    for start in range(0, out.size, rng.HALF):
        rng.fill(out[start : start + rng.HALF], key, stream, first + start // 4)


def aligned_rows(size: int, kind: type) -> Any:
    """`size` values of 2 bytes, at a multiple of 64 bytes: a row is a line of the cache."""
    memory = np.empty(2 * size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + 2 * size].view(kind)


def random_words(key: Words, block: Superblock, level: int, steps: Schedule) -> Masks:
    """The random words of one level of a superblock."""
    out = np.empty(-(-steps.drawn // rng.HALF) * rng.HALF, np.uint32)
    draw(readonly(key), STREAM + 256 * level, block.start, out)
    return out


def write(
    x: Floats,
    blocks: Sequence[Superblock],
    rotated: bool,
    key: Words,
    scales: Scales,
    raw: Masks,
    words: Words16,
    decoded: Floats | None = None,
) -> tuple[int, int]:
    """Code `x` (1-D): fill `scales`, write bits to `raw`, and words. The lengths in uint32 and in words; NOT_FINITE if x is.

    `rotated`: rows with a scale of their own are rotated first. `decoded`: overwritten by the decoded values, unless rotated.
    """
    measured = _measure(x, blocks)
    if measured is None:
        return NOT_FINITE, 0
    live = [any(each) for each in measured]
    found = extent(blocks, live)
    allowed = allowed_bits(found)
    total = -(-found.raw // 32)
    raw[:total] = 0
    out = writer(words, found.lanes)
    longest = max((block.log_length for block in blocks), default=0)
    size = LANES << longest
    cells, post, prior = aligned_rows(size, np.uint16), aligned_rows(2 * size, np.int16), aligned_rows(2 * size, np.int16)
    bits, rows = np.empty(1 << longest, np.uint32), np.empty(1 << longest, np.uint32)
    table, samples = chances(), logistic()
    left, at, first = found.coded, 0, 0
    for block, sizes, alive in zip(blocks, measured, live, strict=True):
        own = scales[first : first + block.scales]
        first += block.scales
        tables, count = designs.tables(block.rate), 1 << designs.CHANNELS[block.rate].levels
        if not alive:
            own.fill(0)
            if decoded is not None:
                decoded[block.start : block.stop] = 0
            continue
        here = cells[: LANES << block.log_length]
        pieces = _pieces(x, block)
        if rotated:
            pieces = [_turned(*each) for each in zip(pieces, sizes, [key] * len(sizes), _starts(block), strict=True)]
        for part, values, spread in zip(_parts(here, block), pieces, sizes, strict=True):
            symbols.cells_of(values, 1.0 if rotated else spread, part, block.lanes)
        for level, steps in enumerate(designs.schedules(block.rate, block.log_length)):
            symbols.look_up_llrs(tables.posterior[level], here, post[: 2 * here.size])
            if not steps.flat:
                symbols.look_up_priors(tables.prior[level], here, CELL_BITS, prior[: 2 * here.size])
            noise = random_words(key, block, level, steps)
            shared, trees = Shared(noise, samples, table), Trees(post, prior, bits)
            left = encode_level(steps.encode, trees, shared, out, rows, block.lanes, left, allowed)
            pack(rows, steps.raw, block.lanes, raw, at)
            at += steps.raw * block.lanes
            symbols.mark(here, bits[: 1 << block.log_length], CELL_BITS + level)
        for number, (part, values) in enumerate(zip(_parts(here, block), pieces, strict=True)):
            fit = _unbiased if rotated else _fitted
            own[number] = fit(values, sizes[number], part, count, block.lanes) if sizes[number] else 0
            if decoded is not None:
                own[number] = min(own[number], _MOST * sizes[number] * designs.CHANNELS[block.rate].step / 2)
                target = _pieces(decoded, block)[number]
                symbols.values_of(part, CELL_BITS, count, own[number], target, block.lanes)
    return total, finish_writing(out, found.lanes)


def _starts(block: Superblock) -> range:
    """Offsets of the runs of values that share a scale."""
    return range(block.start, block.stop, SCALED)


def _turned(x: Floats, size: float, key: Words, start: int) -> Floats:
    """The rotation of x / size, or of 0."""
    return rotation.rotated(x, size, key, start) if size else np.zeros_like(x)


def _unbiased(y: Floats, size: float, cells: symbols.Cells, count: int, lanes: int) -> float:
    """The scale size ||y||^2 / <y, q>; less where values beyond the largest float32 could come of it; never 0."""
    yq, qq = symbols.inner_products(y, 1.0, cells, CELL_BITS, count, lanes)
    best = size * symbols.energy(y) / max(yq, _SMALLEST * qq)
    if best * np.sqrt(qq) > _HUGE / 2:
        best = max(_HUGE - size * np.sqrt(y.size), 0.0) / (2 * np.sqrt(qq))
    return float(max(np.float32(best), _LEAST))


def _fitted(x: Floats, size: float, cells: symbols.Cells, count: int, lanes: int) -> float:
    """The scale c for which c y misses x the least and x - c y is finite; never 0."""
    xy, yy = symbols.inner_products(x, size, cells, CELL_BITS, count, lanes)
    best = max(xy / yy * size, 0.0)
    if best * count > _HUGE:
        best = min(best, 0.99 * max(_HUGE - float(np.abs(x).max()), 0.0) / count)
    return float(max(np.float32(best), _LEAST))


def _measure(x: Floats, blocks: Sequence[Superblock]) -> list[list[float]] | None:
    """Root mean squares of rows with a scale of their own in each superblock, 0 below 2^-100; None if a value is not finite."""
    found = []
    for block in blocks:
        sizes = [root_mean_square(piece) for piece in _pieces(x, block)]
        if min(sizes) < 0:
            return None
        found.append([size if size >= _SMALLEST else 0.0 for size in sizes])
    return found


def _pieces(x: Floats, block: Superblock) -> list[Floats]:
    """The values of a superblock that share a scale."""
    return [x[start : min(start + SCALED, block.stop)] for start in _starts(block)]


def _parts(cells: symbols.Cells, block: Superblock) -> list[symbols.Cells]:
    """The rows of a superblock that share a scale. Fewer than 32 blocks are so short that they have one scale."""
    if block.lanes < LANES:
        return [cells]
    return [cells[start : start + SCALED] for start in range(0, cells.size, SCALED)]


def read(
    blocks: Sequence[Superblock],
    rotated: bool,
    key: Words,
    scales: Scales,
    raw: Masks,
    words: Words16,
    out: Floats,
) -> bool:
    """Overwrite `out` (1-D). Whether the stream ended as it should. `raw` and `words` are as long as `extent` says, or longer."""
    live = live_ones(blocks, scales)
    found = extent(blocks, live)
    source = reader(words, found.lanes)
    longest = max((block.log_length for block in blocks), default=0)
    size = LANES << longest
    cells, prior = aligned_rows(size, np.uint16), aligned_rows(2 * size, np.int16)
    bits, rows = np.empty(1 << longest, np.uint32), np.empty(1 << longest, np.uint32)
    table, samples = chances(), logistic()
    at, first = 0, 0
    for block, alive in zip(blocks, live, strict=True):
        own = scales[first : first + block.scales]
        first += block.scales
        tables, count = designs.tables(block.rate), 1 << designs.CHANNELS[block.rate].levels
        target = out[block.start : block.stop]
        if not alive:
            target.fill(0)
            continue
        here = cells[: LANES << block.log_length]
        here.fill(0)
        for level, steps in enumerate(designs.schedules(block.rate, block.log_length)):
            if not steps.flat:
                symbols.look_up_priors(tables.prior[level], here, 0, prior[: 2 * here.size])
            unpack(raw, at, steps.raw, block.lanes, rows)
            at += steps.raw * block.lanes
            noise = random_words(key, block, level, steps)
            decode_level(steps.decode, prior, bits, Shared(noise, samples, table), source, rows, block.lanes)
            symbols.mark(here, bits[: 1 << block.log_length], level)
        for part, values, scale, start in zip(_parts(here, block), _pieces(out, block), own, _starts(block), strict=True):
            symbols.values_of(part, 0, count, np.float32(1) if rotated else scale, values, block.lanes)
            if rotated:
                rotation.restore(values, scale, key, start)
    return int(source.place[0]) == words.size and bool(ended_well(source.state, found.lanes))


def live_ones(blocks: Sequence[Superblock], scales: Scales) -> list[bool]:
    """Mask of the superblocks with a scale that is not 0."""
    live, first = [], 0
    for block in blocks:
        live.append(bool(scales[first : first + block.scales].any()))
        first += block.scales
    return live
