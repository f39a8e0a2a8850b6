"""A vector coded as one stream: scales, raw bits, and the words of one range coder for all superblocks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from psnode.codecs.arrays import Float64s, Floats, Int64s, Words, Words16, readonly
from psnode.codecs.kernels.root_mean_square import root_mean_square
from psnode.codecs.polarcodes import designs, hadamard, shelf, symbols
from psnode.codecs.polarcodes.blocks import (
    CODED,
    COLUMNS,
    EXTRA,
    LIVE,
    RAW,
    SMALLEST,
    START,
    STOP,
    WIDTH,
    Workspace,
    measure,
    read_blocks,
    write_blocks,
)
from psnode.codecs.polarcodes.lanes import Masks
from psnode.codecs.polarcodes.range_reader import reader
from psnode.codecs.polarcodes.range_writer import writer
from psnode.codecs.polarcodes.rate_channel import chances, logistic
from psnode.codecs.polarcodes.successive_cancellation import Shared
from psnode.codecs.polarcodes.superblocks import SCALED, Superblock
from psnode.codecs.polarcodes.vectors import LANES

NOT_FINITE = -1
_SCRATCH = 576  # float32 of scratch for norms
_NONE = np.empty(0, np.float32)


class Extent(NamedTuple):
    """Sizes of a stream that follow from its scales.

    `raw` and `coded` are the numbers of raw and of coded bits: a row of bits counts as its number of lanes. `lanes` is the
    number of lanes of the coder.
    """

    raw: int
    coded: int
    lanes: int


def extent(blocks: Sequence[Superblock], live: Sequence[bool]) -> Extent:
    """Return the extent of the superblocks for which `live` is True. A superblock is live if it has a nonzero scale."""
    raw = coded = lanes = 0
    for block, alive in zip(blocks, live, strict=True):
        if alive:
            place = shelf.place_of(block.rate, block.log_length)
            raw += block.lanes * place.raw
            coded += block.lanes * place.coded
            lanes = max(lanes, block.lanes if place.coded else 0)
    return Extent(raw, coded, lanes)


def allowed_words(found: Extent) -> int:
    """Return the maximum number of words of a coder's stream.

    Once a writer has used them up, it takes the bits likelier by the prior.
    """
    return (found.coded + EXTRA * found.lanes + 15) // 16 + 4 * found.lanes if found.lanes else 0


def aligned_rows(size: int, kind: type) -> Any:
    """Return an array of `size` values of 2 bytes, aligned to 64 bytes, so that each row of 32 values is one cache line."""
    memory = np.empty(2 * size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + 2 * size].view(kind)


def room_for(log_length: int, rows_of_llrs: int) -> tuple[Workspace, Shared]:
    """Return scratch memory for superblocks with blocks of up to 2^log_length values.

    For each row of values it has `rows_of_llrs` rows of LLRs.
    """
    length = 1 << log_length
    cells, llrs = aligned_rows(LANES * length, np.uint16), aligned_rows(rows_of_llrs * LANES * length, np.int16)
    bits, rows, noise = (np.empty(length + more, np.uint32) for more in (1, 0, 256))
    room = Workspace(cells, llrs, bits, rows, np.empty(LANES, np.float32), np.empty(LANES, np.int32))
    return room, Shared(noise, *_constants(), np.empty(LANES, np.uint32))


@cache
def _constants() -> tuple[Any, Any]:
    return logistic(), chances()


def table_of(blocks: Sequence[Superblock]) -> Int64s:
    """Return the superblocks as rows of the table that psnode.codecs.polarcodes.blocks uses. All are marked as live."""
    rows = []
    for block in blocks:
        place = shelf.place_of(block.rate, block.log_length)
        bits = block.lanes * place.raw, block.lanes * place.coded
        rows.append((block.start, block.stop, block.log_length, block.lanes, place.first, place.levels, *bits, 1))
    return np.array(rows, np.int64).reshape(-1, COLUMNS)


def write(
    x: Floats,
    blocks: Sequence[Superblock],
    rotated: bool,
    key: Words,
    scales: Floats,
    raw: Masks,
    words: Words16,
    decoded: Floats = _NONE,
    *,
    capped: bool = False,
) -> tuple[int, int]:
    """Code `x` (1-D): write `scales`, bits to `raw`, and `words`.

    Return the number of uint32 in `raw` and of words, or NOT_FINITE.

    `scales`, `raw` and `decoded` must hold zeros, and `raw` must be one uint32 longer than its bits. If `rotated`, each piece
    of values that share a scale is rotated first. `decoded` is overwritten with the decoded values, unless the values are
    rotated. `capped`: see write_blocks.
    """
    table, x = table_of(blocks), readonly(x)
    sizes = _sizes(x, table, scales.size)
    if sizes is None:
        return NOT_FINITE, 0
    energies = np.empty(0)
    if rotated:
        x, energies = _turned(x, table, sizes, key)
    room, shared = room_for(max((block.log_length for block in blocks), default=0), 4)
    distances = np.array([designs.CHANNELS[block.rate].step for block in blocks])
    found = _mark_live(table, sizes)
    used = write_blocks(
        x, table, distances, sizes, energies, shelf.shelf(), readonly(key), room, shared, writer(words, found.lanes), scales, raw,
        decoded, capped,
    )  # fmt: skip
    return -(-found.raw // 32), used


def _mark_live(table: Int64s, sizes: Float64s) -> Extent:
    """Mark the superblocks in which a piece has a nonzero root mean square as live, and return their extent."""
    pieces = -((table[:, START] - table[:, STOP]) // SCALED)
    table[:, LIVE] = np.logical_or.reduceat(sizes > 0, np.cumsum(pieces) - pieces)
    live = table[table[:, LIVE] == 1]
    return Extent(int(live[:, RAW].sum()), int(live[:, CODED].sum()), int(live[live[:, CODED] > 0, WIDTH].max(initial=0)))


def _pieces(table: Int64s) -> list[slice]:
    """Return the slices of the vector whose values share a scale."""
    spans = table[:, [START, STOP]].tolist()
    return [slice(at, min(at + SCALED, stop)) for start, stop in spans for at in range(start, stop, SCALED)]


def _sizes(x: Floats, table: Int64s, count: int) -> Float64s | None:
    """Return the root mean square of each piece of values that share a scale, or None if a value is not finite.

    A root mean square below 2^-100 is returned as 0.
    """
    sizes = np.empty(count)
    measure(x, table, np.empty(_SCRATCH, np.float32), sizes)
    if sizes.min(initial=0) < 0:
        return None
    if np.isinf(sizes.max(initial=0)):  # the norm exceeds float32
        sizes[:] = [root_mean_square(x[piece]) for piece in _pieces(table)]
    sizes[sizes < SMALLEST] = 0
    return sizes


def _turned(x: Floats, table: Int64s, sizes: Float64s, key: Words) -> tuple[Floats, Float64s]:
    """Return each piece divided by its root mean square and rotated, and the energies of the pieces.

    A piece whose root mean square is 0 becomes zeros.
    """
    turned, energies = np.zeros_like(x), np.zeros_like(sizes)
    for number, (piece, size) in enumerate(zip(_pieces(table), sizes.tolist(), strict=True)):
        if size:
            turned[piece] = hadamard.rotated(x[piece], size, key, piece.start)
            energies[number] = symbols.energy(turned[piece])
    return readonly(turned), energies


def read(
    blocks: Sequence[Superblock],
    rotated: bool,
    key: Words,
    scales: Floats,
    raw: Masks,
    words: Words16,
    out: Floats,
) -> bool:
    """Overwrite `out` (1-D) with the decoded values. Return True if the stream ended correctly.

    `words` must have a length that agrees with `extent`, and `raw` must be one uint32 longer than its bits.
    """
    live = live_ones(blocks, scales)
    found = extent(blocks, live)
    table, source = table_of(blocks), reader(words, found.lanes)
    table[:, LIVE] = live
    for alive, block in zip(live, blocks, strict=True):
        if not alive:
            out[block.start : block.stop] = 0
    room, shared = room_for(max((block.log_length for block in blocks), default=0), 2)
    ended = read_blocks(
        table, shelf.shelf(), readonly(key), room, shared, source, readonly(scales), readonly(raw), out, found.lanes, rotated
    )
    if rotated:
        for alive, block, first in zip(live, blocks, np.cumsum([0, *(block.scales for block in blocks)]), strict=False):
            for number, piece in enumerate(_pieces(table_of([block])) if alive else ()):
                hadamard.restore(out[piece], scales[first + number], key, piece.start)
    return bool(ended)


def live_ones(blocks: Sequence[Superblock], scales: Floats) -> list[bool]:
    """Return, for each superblock, True if it has a nonzero scale."""
    live, first = [], 0
    for block in blocks:
        live.append(bool(scales[first : first + block.scales].any()))
        first += block.scales
    return live
