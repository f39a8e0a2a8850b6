"""Successive cancellation of 32 blocks in parallel, along a schedule. The writer uses two trees of LLRs, and the reader one.

The posterior tree, which only the writer has, depends on the values to be coded. The prior tree does not. Frozen bits are drawn
at random. A free bit takes the value that is likelier given the values to be coded. It is coded with its prior, or sent raw if
the prior is flat.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from psnode.codecs.arrays import Words16
from psnode.codecs.kernels.jit import inlined, kernel
from psnode.codecs.polarcodes import schedule as kinds
from psnode.codecs.polarcodes.lanes import Llrs, Masks, below, f_row, g_row, gather_row, negative
from psnode.codecs.polarcodes.range_coder import likely_of
from psnode.codecs.polarcodes.range_reader import WordReader, read_row
from psnode.codecs.polarcodes.range_writer import Writer, write_row
from psnode.codecs.polarcodes.schedule import Steps
from psnode.codecs.polarcodes.vectors import LANES

# Steps of the prior tree have odd numbers; so do steps of leaves without a prior.
_G_POST, _JOIN, _FREE_FLAT, _REPEAT_FLAT = kinds.G_POST, kinds.JOIN, kinds.FREE_FLAT, kinds.REPEAT_FLAT
SAMPLES = 4096  # of the logistic distribution; a row of 32 samples begins at a random offset


class Shared(NamedTuple):
    """Data that writer and reader share: random words of a level, samples of the logistic distribution, and the coder's table.

    `chances`: scratch memory, 32 uint32.
    """

    noise: Masks
    samples: Llrs
    table: Words16
    chances: Masks


@inlined
def first_of(word: np.uint32) -> int:
    """Return the offset, taken from the random `word`, at which a row of samples begins."""
    return np.int64(word & np.uint32(SAMPLES - 1))  # type: ignore[return-value]


@inlined
def _descend(kind: int, n: int, s: int, root: int, llrs: Llrs, bits: Masks) -> None:
    """Process one step: compute a child's LLRs in the tree whose LLRs begin at row `root`, or join the bits of two children."""
    half = n >> 1
    if kind < _G_POST:
        for i in range(root, root + half):
            f_row(llrs, n, i)
    elif kind < _JOIN:
        for i in range(half):
            g_row(llrs, n, root + i, bits[s + i])
    else:
        for i in range(half):
            bits[s + i] ^= bits[s + half + i]


@inlined
def _draw(is_flat: bool, n: int, s: int, row: int, llrs: Llrs, bits: Masks, noise: Masks, drawn: int, samples: Llrs) -> None:
    """Draw the frozen bits of a subtree, or the random bits of a repetition.

    If `is_flat`, the bits are fair coins. Otherwise they are drawn from their prior, whose LLRs begin at `row`.
    """
    if is_flat:
        for i in range(n):
            bits[s + i] = noise[drawn + i]
    else:
        for i in range(n):
            bits[s + i] = below(llrs, row + i, samples, first_of(noise[drawn + i]))


@inlined
def _gather(root: int, n: int, s: int, llrs: Llrs, bits: Masks) -> None:
    """Write the LLRs of the single free bit of a repetition to row `root`, given the bits that were drawn for it."""
    for j in range(LANES * root, LANES * (root + 1)):
        llrs[j] = np.int16(0)
    for i in range(n):
        gather_row(llrs, root + n + i, root, bits[s + i])


@kernel
def encode_level(
    steps: Steps,
    first: int,
    last: int,
    llrs: Llrs,
    prior: int,
    bits: Masks,
    shared: Shared,
    writer: Writer,
    raw: Masks,
    lanes: int,
    left: int,
    allowed: int,
) -> int:
    """Choose bits[:N] of a level by the steps first..last-1. Return the number of bits that are still to be coded.

    The LLRs given the values are in rows N..2N-1 of `llrs`. The LLRs of the prior are in the same rows after row `prior`. The
    last entry of `bits` is scratch. Raw rows are written to `raw`, and coded rows to the stream. `left` is the number of bits
    still to be coded in all lanes. Once 16 bits per word plus `left` exceed `allowed`, bits take the value that is likelier by
    the prior.
    """
    used = np.uint64((1 << lanes) - 1)
    noise, samples, table, chances = shared  # unpacked once, because each access would count references
    state, places, log, words = writer
    spare = bits.size - 1
    drawn, filled = 0, 0
    for k in range(first, last):
        kind: Any = np.int64(steps[k, 0])
        n: Any = np.int64(steps[k, 1])
        s: Any = np.int64(steps[k, 2])
        if kind <= _JOIN:
            _descend(kind, n, s, prior if kind & 1 else 0, llrs, bits)
        else:
            is_flat, repeats = kind & 1 == 1, kind >= _REPEAT_FLAT
            row, count, place = n, n, s  # the bits to be chosen: their LLRs, their number, their place
            # Frozen bits are drawn from the shared seed. A repetition has one free bit, which is added to n drawn bits.
            if repeats or kind < _FREE_FLAT:
                _draw(is_flat, n, s, prior + n, llrs, bits, noise, drawn, samples)
                drawn += n
                row, count, place = 0, 1 if repeats else 0, spare
                for root in range(0, (1 if is_flat else prior + 1) if repeats else 0, prior):
                    _gather(root, n, s, llrs, bits)
            if is_flat:
                for i in range(count):
                    bits[place + i] = negative(llrs, row + i)
                    raw[filled + i] = bits[place + i]
                filled += count
            else:
                # A bit is coded as its difference from the prior's likelier value, which the reader knows. The difference is
                # mostly 0, which costs little.
                for i in range(count):
                    likely = likely_of(llrs, prior + row + i, table, chances)
                    bit = likely if 16 * places[0] + left > allowed else negative(llrs, row + i)
                    bits[place + i] = bit
                    write_row(state, places, log, words, chances, np.uint32(bit ^ likely), used)
                    left -= lanes
            if repeats:
                for i in range(n):
                    bits[s + i] ^= bits[spare]
    return left


@kernel
def decode_level(
    steps: Steps, first: int, last: int, llrs: Llrs, bits: Masks, shared: Shared, reader: WordReader, raw: Masks, lanes: int
) -> None:
    """Decode one level, and write its N decoded rows to bits[:N].

    The LLRs of the level's prior are in rows N..2N-1 of `llrs`. `raw` holds the rows that were sent raw.
    """
    used = np.uint64((1 << lanes) - 1)
    noise, samples, table, chances = shared
    state, taken, words = reader
    spare = bits.size - 1
    drawn, filled = 0, 0
    for k in range(first, last):
        kind: Any = np.int64(steps[k, 0])
        n: Any = np.int64(steps[k, 1])
        s: Any = np.int64(steps[k, 2])
        if kind <= _JOIN:
            _descend(kind, n, s, 0, llrs, bits)
        else:
            is_flat, repeats = kind & 1 == 1, kind >= _REPEAT_FLAT
            row, count, place = n, n, s
            if repeats or kind < _FREE_FLAT:
                _draw(is_flat, n, s, n, llrs, bits, noise, drawn, samples)
                drawn += n
                row, count, place = 0, 1 if repeats else 0, spare
                if repeats and not is_flat:
                    _gather(0, n, s, llrs, bits)
            if is_flat:
                for i in range(count):
                    bits[place + i] = raw[filled + i]
                filled += count
            else:
                for i in range(count):
                    likely = likely_of(llrs, row + i, table, chances)
                    bits[place + i] = np.uint32(likely ^ read_row(state, taken, words, chances, used))
            if repeats:
                for i in range(n):
                    bits[s + i] ^= bits[spare]
