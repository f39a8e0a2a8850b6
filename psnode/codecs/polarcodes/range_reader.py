"""The reading half of the range coder (psnode.codecs.polarcodes.range_coder)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from psnode.codecs.arrays import Words16
from psnode.codecs.kernels.bitmasks import lowest_one, ones
from psnode.codecs.kernels.jit import inlined
from psnode.codecs.kernels.llvm.instructions import instructions
from psnode.codecs.kernels.llvm.lane_moves import load_expanded, moves
from psnode.codecs.kernels.llvm.operations import packed, select, unpacked
from psnode.codecs.polarcodes.lanes import Masks
from psnode.codecs.polarcodes.range_coder import narrow, split, widened
from psnode.codecs.polarcodes.vectors import LANES, MOVES_LANES, store_row

Places = npt.NDArray[np.int64]


class WordReader(NamedTuple):
    """The state of a reader.

    `state`: a row of codes and a row of ranges. `place`: the number of words taken so far (including words past the end), and
    the number of all words. `words`: all words, followed by zeros.
    """

    state: Masks
    place: Places
    words: Words16


@instructions
def get_row(state: Masks, chances: Masks, words: Words16, place: int, used: np.uint32) -> np.uint64:
    """Decode one bit per lane. Return a mask of the bits that are the less likely ones, and a mask of lanes that take a word.

    The first mask is in bits 32..63 of the result, the second in bits 0..31. If the processor can move lanes (see `moves`), the
    lanes of the second mask have already received their word.
    """
    code, upper, lower = split(state, chances, used)
    chosen = code >= lower
    ranges = select(chosen, upper, lower)
    code = code - select(chosen, lower, 0)
    empty = narrow(ranges) & unpacked(used)
    if moves():
        taken = load_expanded(words, place, empty).astype(np.uint32)
        code, ranges = widened(empty, code) | taken, widened(empty, ranges)
    store_row(state, 0, code)
    store_row(state, 1, ranges)
    return (packed(chosen).astype(np.uint64) << 32) | packed(empty).astype(np.uint64)  # type: ignore[no-any-return]


def reader(words: Words16, lanes: int) -> WordReader:
    """Return a reader of `words` for `lanes` lanes. There must be at least two words for each lane."""
    state = np.zeros(2 * LANES, np.uint32)
    state[LANES:] = 0xFFFFFFFF
    state[:lanes] = (words[: 2 * lanes : 2].astype(np.uint32) << np.uint32(16)) | words[1 : 2 * lanes : 2]
    return WordReader(state, np.array([2 * lanes, words.size], np.int64), np.concatenate([words, np.zeros(LANES, np.uint16)]))


@inlined
def read_row(state: Masks, place: Places, words: Words16, chances: Masks, used: np.uint64) -> np.uint32:
    """Decode one bit of each lane. Return the mask of the lanes whose bit has the less likely value."""
    found = get_row(state, chances, words, min(place[0], place[1]), np.uint32(used))
    empty = found & np.uint64(0xFFFFFFFF)
    if MOVES_LANES:
        place[0] += ones(empty)
    else:
        while empty:
            lane = lowest_one(empty)
            state[lane] = (state[lane] << np.uint32(16)) | np.uint32(words[min(place[0], place[1])])
            state[LANES + lane] <<= np.uint32(16)
            place[0] += 1
            empty &= empty - np.uint64(1)
    return np.uint32(found >> np.uint64(32))


@inlined
def ended_well(state: Masks, lanes: int) -> bool:
    """Return True if the final code of every lane is the one that finish_writing chooses."""
    top = np.uint32(0)
    for lane in range(lanes):
        top |= state[lane]
    return bool(top < np.uint32(1 << 16))
