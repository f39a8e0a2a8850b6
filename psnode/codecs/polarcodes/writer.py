"""The writing half of the coder: words go to the places in the stream that were taken for them.

A lane's last word may still grow by a carry: it waits until the next one is known. A carry into the words before that one is
rare; they are found through `places`, which remembers for every word the place of the lane's word before it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from psnode.codecs.arrays import Words16
from psnode.codecs.kernels.bitmasks import lowest_one, ones
from psnode.codecs.kernels.jit import inlined, kernel
from psnode.codecs.polarcodes.coder import narrow, split, widened
from psnode.codecs.polarcodes.lanes import Masks
from psnode.codecs.polarcodes.vectors import (
    LANES,
    ROW,
    WIDE,
    as_mask,
    as_word,
    at,
    gathered,
    load,
    moves,
    moves_lanes,
    row_at,
    splat,
)  # fmt: skip

Places = npt.NDArray[np.int64]
Whole = int | np.integer[Any]

# State: rows of 32 uint32. The low ends of the intervals; their ranges; the words that wait, with a carry in bit 16; those that
# waited before the last step.
_LOW, _RANGE, _WAITING, _DONE, _ROWS = range(5)

# Places: [0] the number of words so far, [1] of those in the log. Of lane j: [2 + j] and [34 + j] where its next two words go,
# [66 + j] where the one goes that waits. From [98] on, of every word, where the word before it of the same lane is.
_NEXT, _AFTER, _LAST, _BEFORE = 2, 2 + LANES, 2 + 2 * LANES, 2 + 3 * LANES
NONE = -1
_LOG = 512  # words that are done, then the lanes of them, 32 added where there is a carry


class Writer(NamedTuple):
    """State, places and log; the words, as many as there may be."""

    state: Masks
    places: Places
    log: Words16
    words: Words16


def _put(typing: Any, state: Any, chances: Any, unlikely: Any, used: Any) -> Any:
    """Code a bit a lane; the lanes that take a word."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        state, chances, unlikely, used = arguments
        low, upper, lower = split(context, builder, signature, state, chances, used)
        places = [row_at(context, builder, signature.args[0], state, row, WIDE) for row in range(_ROWS)]
        chosen = as_mask(builder, unlikely)
        moved = builder.add(low, builder.select(chosen, lower, splat(WIDE, 0)))
        ranges = builder.select(chosen, upper, lower)
        carry = builder.zext(builder.icmp_unsigned("<", moved, low), WIDE)
        done = builder.add(load(builder, places[_WAITING], 4), carry)
        empty = narrow(builder, ranges)
        waiting = builder.select(empty, builder.lshr(moved, splat(WIDE, 16)), done)
        rows = widened(builder, empty, moved), widened(builder, empty, ranges), waiting, done
        for value, place in zip(rows, places, strict=True):
            builder.store(value, place).align = 4
        return as_word(builder, empty)

    return types.uint32(state, chances, types.uint32, types.uint32), generate


def _note(typing: Any, state: Any, empty: Any, log: Any, count: Any) -> Any:
    """Append the words that are done, of the lanes `empty`, to the log, which has `count` words and room for 32 more."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if moves(context):
            state, empty, log, count = arguments
            done = load(builder, row_at(context, builder, signature.args[0], state, _DONE, WIDE), 4)
            lanes = builder.add(ir.Constant(ROW, list(range(LANES))), builder.trunc(_carries(builder, done), ROW))
            for values, start in (builder.trunc(done, ROW), 0), (lanes, _LOG):
                first = builder.add(count, ir.Constant(count.type, start))
                target = at(context, builder, signature.args[2], log, first, ROW)
                builder.store(gathered(builder, values, as_mask(builder, empty)), target).align = 2
        return context.get_dummy_value()

    return types.void(state, types.uint32, log, types.intp), generate


def _carries(builder: Any, done: Any) -> Any:
    return builder.shl(builder.lshr(done, splat(WIDE, 16)), splat(WIDE, 5))


_put_row = cast(Callable[[Masks, Masks, np.uint32, np.uint32], np.uint32], intrinsic(_put))
_note_row = cast(Callable[[Masks, np.uint32, Words16, int], None], intrinsic(_note))


def writer(words: Words16, lanes: int) -> Writer:
    """Of a stream of `lanes` lanes, which begins."""
    state = np.zeros(_ROWS * LANES, np.uint32)
    state[_RANGE * LANES : _WAITING * LANES] = 0xFFFFFFFF
    places = np.empty(_BEFORE + words.size, np.int64)
    places[:2] = 2 * lanes, 0
    for first, start in (_NEXT, 0), (_AFTER, 1):
        places[first : first + LANES] = 2 * np.arange(LANES) + start
    places[_LAST:_BEFORE] = NONE
    return Writer(state, places, np.empty(2 * _LOG, np.uint16), words)


@kernel
def _carry(words: Words16, places: Places, place: int) -> None:
    """Add 1 to the word at `place`, and to those before it where that is 2^16."""
    while place >= 0:
        words[place] += np.uint16(1)
        if words[place]:
            break
        place = places[_BEFORE + place]


@inlined
def _settle(words: Words16, places: Places, lane: Whole, done: Whole, carry: Whole) -> None:
    """Write a lane's word to its place."""
    place = places[_LAST + lane]
    if place >= 0:
        words[place] = np.uint16(done)
        if carry:
            _carry(words, places, int(places[_BEFORE + place]))


@inlined
def _take(places: Places, lane: Whole, new: Whole) -> None:
    """The place that the lane takes is number `new`."""
    place = places[_NEXT + lane]
    places[_BEFORE + place] = places[_LAST + lane]
    places[_LAST + lane], places[_NEXT + lane], places[_AFTER + lane] = place, places[_AFTER + lane], new


@kernel
def _drain(places: Places, log: Words16, words: Words16) -> None:
    """Write the log."""
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
    """Code one bit in each of the lanes `used`."""
    empty = np.uint64(_put_row(state, chances, unlikely & np.uint32(used), np.uint32(used)))
    if moves_lanes():
        _note_row(state, np.uint32(empty), log, places[1])
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


@kernel
def finish_writing(writer: Writer, lanes: int) -> int:
    """End the stream: the number of words. Each lane's code is the least multiple of 2^16 in its interval."""
    state, places, words = writer.state, writer.places, writer.words
    _drain(places, writer.log, words)
    for lane in range(lanes):
        end = (np.int64(state[lane]) + 0xFFFF) >> 16
        done = np.int64(state[_WAITING * LANES + lane]) + (end >> 16)
        _settle(words, places, lane, done & 0xFFFF, done >> 16)
        words[places[_NEXT + lane]] = np.uint16(end & 0xFFFF)
        words[places[_AFTER + lane]] = 0
    return int(places[0])
