"""Successive cancellation of 32 blocks side by side, along a schedule: the writer's, with both trees, and the reader's.

The posterior tree knows the values to be coded, the prior tree does not. Frozen bits are drawn, free ones are the likelier
given the values, coded with their prior, or raw where that is flat.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from psnode.codecs.arrays import Words16
from psnode.codecs.kernels.jit import inlined, kernel
from psnode.codecs.polarcodes import schedule as kinds
from psnode.codecs.polarcodes.coder import likely_of
from psnode.codecs.polarcodes.lanes import Llrs, Masks, below, f_row, g_row, gather_row, negative
from psnode.codecs.polarcodes.reader import Reader, read_row
from psnode.codecs.polarcodes.vectors import LANES
from psnode.codecs.polarcodes.writer import Writer, write_row

_F_POST, _F_PRIOR, _G_POST, _G_PRIOR, _JOIN = kinds.F_POST, kinds.F_PRIOR, kinds.G_POST, kinds.G_PRIOR, kinds.JOIN
_FROZEN_FLAT, _FREE_FLAT, _FREE = kinds.FROZEN_FLAT, kinds.FREE_FLAT, kinds.FREE
_REPEAT_FLAT, _REPEAT = kinds.REPEAT_FLAT, kinds.REPEAT
SAMPLES = 4096  # of the logistic distribution; a row of 32 begins at a random one


class Trees(NamedTuple):
    """LLRs of a level given the values, and by its prior alone, whose leaves are in rows N..2N-1; the bits decided."""

    post: Llrs
    prior: Llrs
    bits: Masks


class Shared(NamedTuple):
    """Known to writer and reader: the random words of a level, samples of the logistic distribution, and the coder's table."""

    noise: Masks
    samples: Llrs
    table: Words16


@inlined
def first_of(word: np.uint32) -> int:
    """Offset of a row of samples."""
    return np.int64(word & np.uint32(SAMPLES - 1))  # type: ignore[return-value]


@inlined
def _descend(kind: int, n: int, s: int, prior: Llrs, bits: Masks) -> None:
    """A step of the prior tree, or the sum of two children, the same on both sides."""
    half = n >> 1
    if kind == _F_PRIOR:
        for i in range(half):
            f_row(prior, n, i)
    elif kind == _G_PRIOR:
        for i in range(half):
            g_row(prior, n, i, bits[s + i])
    else:
        for i in range(half):
            bits[s + i] ^= bits[s + half + i]


@inlined
def _draw(kind: int, n: int, s: int, prior: Llrs, bits: Masks, noise: Masks, drawn: int, samples: Llrs) -> None:
    """A subtree of frozen bits, or a coset of a repetition: its bits by their prior, or by coin where that is flat."""
    if kind in (_FROZEN_FLAT, _REPEAT_FLAT):
        for i in range(n):
            bits[s + i] = noise[drawn + i]
    else:
        for i in range(n):
            bits[s + i] = below(prior, n + i, samples, first_of(noise[drawn + i]))


@inlined
def _gather(llrs: Llrs, n: int, s: int, bits: Masks) -> None:
    """Row 0: the LLRs of the one bit of a repetition, given its coset."""
    llrs[:LANES] = 0
    for i in range(n):
        gather_row(llrs, n + i, bits[s + i])


@inlined
def _turn(n: int, s: int, bits: Masks, turned: np.uint32) -> None:
    """The coset, turned around in some lanes."""
    for i in range(n):
        bits[s + i] ^= turned


@kernel
def encode_level(
    steps: np.ndarray, trees: Trees, shared: Shared, writer: Writer, raw: Masks, lanes: int, left: int, allowed: int
) -> int:
    """Decide bits[:N] of a level.

    Writes raw rows to `raw` and coded ones to the stream. `left`: rows to be coded from here on, weighted with their lanes;
    the rest is returned. Once 16 bits a word and `left` exceed `allowed`, the prior's likelier values are taken.
    """
    chances = np.empty(LANES, np.uint32)
    used = np.uint64((1 << lanes) - 1)
    post, prior, bits = trees  # once: each time would count references
    noise, samples, table = shared
    state, places, log, words = writer
    drawn, filled = 0, 0
    for k in range(steps.shape[0]):
        kind, n, s = steps[k, 0], steps[k, 1], steps[k, 2]
        if kind == _F_POST:
            for i in range(n >> 1):
                f_row(post, n, i)
        elif kind == _G_POST:
            for i in range(n >> 1):
                g_row(post, n, i, bits[s + i])
        elif kind <= _JOIN:
            _descend(kind, n, s, prior, bits)
        elif kind == _FREE_FLAT:
            for i in range(n):
                bits[s + i] = negative(post, n + i)
                raw[filled + i] = bits[s + i]
            filled += n
        elif kind == _FREE:
            for i in range(n):
                likely = likely_of(prior, n + i, table, chances)
                bit = likely if 16 * places[0] + left > allowed else negative(post, n + i)
                bits[s + i] = bit
                write_row(state, places, log, words, chances, np.uint32(bit ^ likely), used)
                left -= lanes
        else:
            _draw(kind, n, s, prior, bits, noise, drawn, samples)
            drawn += n
            if kind == _REPEAT_FLAT:
                _gather(post, n, s, bits)
                raw[filled] = negative(post, 0)
                _turn(n, s, bits, raw[filled])
                filled += 1
            elif kind == _REPEAT:
                _gather(post, n, s, bits)
                _gather(prior, n, s, bits)
                likely = likely_of(prior, 0, table, chances)
                turned = likely if 16 * places[0] + left > allowed else negative(post, 0)
                write_row(state, places, log, words, chances, np.uint32(turned ^ likely), used)
                left -= lanes
                _turn(n, s, bits, turned)
    return left


@kernel
def decode_level(steps: np.ndarray, prior: Llrs, bits: Masks, shared: Shared, reader: Reader, raw: Masks, lanes: int) -> None:
    """Overwrite bits[:N] of a level: the LLRs of its prior are in rows N..2N-1 of `prior`, its raw rows in `raw`."""
    chances = np.empty(LANES, np.uint32)
    used = np.uint64((1 << lanes) - 1)
    noise, samples, table = shared
    state, place, words = reader
    drawn, filled = 0, 0
    for k in range(steps.shape[0]):
        kind, n, s = steps[k, 0], steps[k, 1], steps[k, 2]
        if kind <= _JOIN:
            _descend(kind, n, s, prior, bits)
        elif kind == _FREE_FLAT:
            bits[s : s + n] = raw[filled : filled + n]
            filled += n
        elif kind == _FREE:
            for i in range(n):
                likely = likely_of(prior, n + i, table, chances)
                bits[s + i] = np.uint32(likely ^ read_row(state, place, words, chances, used))
        else:
            _draw(kind, n, s, prior, bits, noise, drawn, samples)
            drawn += n
            if kind == _REPEAT_FLAT:
                _turn(n, s, bits, raw[filled])
                filled += 1
            elif kind == _REPEAT:
                _gather(prior, n, s, bits)
                likely = likely_of(prior, 0, table, chances)
                _turn(n, s, bits, np.uint32(likely ^ read_row(state, place, words, chances, used)))
