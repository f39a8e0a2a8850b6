"""The writing half of the range coder. Each word goes to the position in the stream that its lane has reserved for it.

A carry may still increase the last word of a lane, so that this word waits until the next word of the lane is known. A carry
into earlier words is rare. To find these words, `places` stores, for every word, the position of the same lane's previous word.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from psnode.codecs.arrays import Words16
from psnode.codecs.kernels.bitmasks import lowest_one, ones
from psnode.codecs.kernels.jit import inlined, kernel
from psnode.codecs.kernels.llvm.instructions import instructions
from psnode.codecs.kernels.llvm.lane_moves import moves, store_compressed
from psnode.codecs.kernels.llvm.operations import packed, select, unpacked
from psnode.codecs.polarcodes.lanes import Masks
from psnode.codecs.polarcodes.range_coder import narrow, split, widened
from psnode.codecs.polarcodes.vectors import LANES, MOVES_LANES, load_row, store_row

Places = npt.NDArray[np.int64]
Whole = int | np.integer[Any]

# State: rows of 32 uint32. The low ends of the intervals; their ranges; the words that wait, with a carry in bit 16; the words
# that waited before the last step.
_LOW, _RANGE, _WAITING, _DONE, _ROWS = range(5)

# Places: [0] the number of words so far, [1] the number of words in the log. For lane j, [2 + j] and [34 + j] are the places of
# its next two words, and [66 + j] is the place of the word that waits. From [98] on, for every word, the place of the same lane's
# previous word.
_NEXT, _AFTER, _LAST, _BEFORE = 2, 2 + LANES, 2 + 2 * LANES, 2 + 3 * LANES
NONE = -1
_LOG = 512  # finished words, followed by their lanes, plus 32 for a carry


class Writer(NamedTuple):
    """The state of a writer: lanes, positions, log, and memory for the maximum number of words."""

    state: Masks
    places: Places
    log: Words16
    words: Words16


@instructions
def put_row(state: Masks, chances: Masks, unlikely: np.uint32, used: np.uint32) -> np.uint32:
    """Code one bit per lane. Return the mask of the lanes that take a word."""
    low, upper, lower = split(state, chances, used)
    chosen = unpacked(unlikely)
    moved = low + select(chosen, lower, 0)
    ranges = select(chosen, upper, lower)
    done = load_row(state, _WAITING) + (moved < low).astype(np.uint32)
    empty = narrow(ranges)
    store_row(state, _LOW, widened(empty, moved))
    store_row(state, _RANGE, widened(empty, ranges))
    store_row(state, _WAITING, select(empty, moved >> 16, done))
    store_row(state, _DONE, done)
    return packed(empty)  # type: ignore[no-any-return]


@instructions
def note_row(state: Masks, empty: np.uint32, log: Words16, count: int) -> None:
    """Append the finished words of the lanes `empty` to the log, which has `count` words and room for 32 more.

    If the processor cannot move lanes, nothing is appended.
    """
    if moves():
        done = load_row(state, _DONE)
        lanes = ((done >> 16) << 5).astype(np.uint16) + np.arange(LANES, dtype=np.uint16)
        store_compressed(log, count, done.astype(np.uint16), unpacked(empty))
        store_compressed(log, count + _LOG, lanes, unpacked(empty))


def writer(words: Words16, lanes: int) -> Writer:
    """Return the writer of a new stream of `lanes` lanes."""
    state = np.zeros(_ROWS * LANES, np.uint32)
    state[_RANGE * LANES : _WAITING * LANES] = 0xFFFFFFFF
    places = np.empty(_BEFORE + words.size, np.int64)
    places[:2] = 2 * lanes, 0
    for first, start in (_NEXT, 0), (_AFTER, 1):
        places[first : first + LANES] = 2 * np.arange(LANES) + start
    places[_LAST:_BEFORE] = NONE
    return Writer(state, places, np.empty(2 * _LOG, np.uint16), words)


@inlined
def _carry(words: Words16, places: Places, place: int) -> None:
    """Add 1 to the word at position `place`. If it overflows, add 1 to the lane's previous word, and so on."""
    while place >= 0:
        words[place] += np.uint16(1)
        if words[place]:
            break
        place = places[_BEFORE + place]


@inlined
def _settle(words: Words16, places: Places, lane: Whole, done: Whole, carry: Whole) -> None:
    """Write a lane's finished word to its position, and propagate a carry to the words before it."""
    place = places[_LAST + lane]
    if place >= 0:
        words[place] = np.uint16(done)
        if carry:
            _carry(words, places, int(places[_BEFORE + place]))


@inlined
def _take(places: Places, lane: Whole, new: Whole) -> None:
    """Record that the lane has just reserved position `new` of the stream."""
    place = places[_NEXT + lane]
    places[_BEFORE + place] = places[_LAST + lane]
    places[_LAST + lane], places[_NEXT + lane], places[_AFTER + lane] = place, places[_AFTER + lane], new


@kernel
def _drain(places: Places, log: Words16, words: Words16) -> None:
    """Write the words of the log to their positions."""
    count = places[1]
    for k in range(count):
        lane = np.int64(log[_LOG + k])
        _settle(words, places, lane & (LANES - 1), log[k], lane >> 5)
        _take(places, lane & (LANES - 1), places[0] - count + k)
    places[1] = 0


@inlined
def write_row(
    state: Masks, places: Places, log: Words16, words: Words16, chances: Masks, unlikely: np.uint32, used: np.uint64
) -> None:
    """Code one bit in each of the lanes `used`, and write finished words."""
    empty = np.uint64(put_row(state, chances, unlikely & np.uint32(used), np.uint32(used)))
    if MOVES_LANES:
        note_row(state, np.uint32(empty), log, places[1])
        found = ones(empty)
        places[0] += found
        places[1] += found
        if places[1] > _LOG - LANES:
            _drain(places, log, words)
    else:
        while empty:
            lane = lowest_one(empty)
            done = np.int64(state[_DONE * LANES + lane])
            _settle(words, places, lane, done & 0xFFFF, done >> 16)
            _take(places, lane, places[0])
            places[0] += 1
            empty &= empty - np.uint64(1)


@inlined
def finish_writing(writer: Writer, lanes: int) -> int:
    """End the stream and return its number of words. The final code of a lane is the least multiple of 2^16 in its interval."""
    state, places, log, words = writer
    _drain(places, log, words)
    for lane in range(lanes):
        end = (np.int64(state[lane]) + 0xFFFF) >> 16
        done = np.int64(state[_WAITING * LANES + lane]) + (end >> 16)
        _settle(words, places, lane, done & 0xFFFF, done >> 16)
        words[places[_NEXT + lane]] = np.uint16(end & 0xFFFF)
        words[places[_AFTER + lane]] = 0
    return int(places[0])
