"""32 binary range coders side by side, one a lane, whose 16-bit words make one stream.

A lane's bit u has the LLR l of its prior. The coder is told e = (u is the less likely value), which has probability q(|l|) of
2^-14, from a table. With range r: r1 = floor(r / 2^14) q; e = 1 takes the upper r1 of the interval, e = 0 the rest. A lane whose
range falls below 2^16 takes 16 bits: reading, the next word of the stream; writing, a place in the stream for the word that is
known two such steps later. So both sides see the words in the same order. Before the first bit every lane takes two words.

Source: Martin, "Range encoding: an algorithm for removing redundancy from a digitised message", 1979.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from psnode.codecs.kernels.jit import inlined, kernel
from psnode.codecs.polarcodes.lanes import I16, I32, I64, LANES, Llrs, Masks, as_mask, as_word, call, load, row_at, splat

Words16 = npt.NDArray[np.uint16]
Places = npt.NDArray[np.int64]

PRECISION = 14
STEPS = 64  # entries of the table of q, |l| in steps of 16 units
_ROW, _WIDE = ir.VectorType(I16, LANES), ir.VectorType(I32, LANES)

# Places: [0] the number of words so far, [1] the most there may be; of lane j: [2 + j] and [34 + j] where its next two words go,
# [66 + j] where its last word went; from [98] on, of every word, where the word before it of the same lane is.
_NEXT, _AFTER, _LAST, _BEFORE = 2, 2 + LANES, 2 + 2 * LANES, 2 + 3 * LANES
NONE = -1


def _steps(typing: Any, llrs: Any, row: Any, steps: Any) -> Any:
    """steps[lane] = |l| in steps of the table; which lanes are below 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        llrs, row, steps = arguments
        values = load(builder, row_at(context, builder, signature.args[0], llrs, row, _ROW))
        sizes = builder.lshr(call(builder, "abs", values, ir.Constant(ir.IntType(1), 0)), splat(_ROW, 4))
        limited = builder.zext(call(builder, "umin", sizes, splat(_ROW, STEPS - 1)), _WIDE)
        target = row_at(context, builder, signature.args[2], steps, ir.Constant(row.type, 0), _WIDE)
        builder.store(limited, target).align = 4
        return as_word(builder, builder.icmp_signed("<", values, splat(_ROW, 0)))

    return types.uint32(llrs, types.intp, steps), generate


def _split(context: Any, builder: Any, signature: Any, arguments: Any) -> tuple[Any, ...]:
    """Addresses and values of the two rows of a state, and the two parts of its ranges: one is empty in lanes not `used`."""
    state, chances = arguments[:2]
    zero, one = (ir.Constant(ir.IntType(64), k) for k in (0, 1))
    places = [row_at(context, builder, signature.args[0], state, row, _WIDE) for row in (zero, one)]
    value, ranges = (load(builder, place, 4) for place in places)
    q = load(builder, row_at(context, builder, signature.args[1], chances, zero, _WIDE), 4)
    upper = builder.mul(builder.lshr(ranges, splat(_WIDE, PRECISION)), q)
    upper = builder.select(as_mask(builder, arguments[-1]), upper, splat(_WIDE, 0))
    return *places, value, upper, builder.sub(ranges, upper)


def _both(builder: Any, high: Any, low: Any) -> Any:
    """Two words of 32 bits as one."""
    upper = builder.shl(builder.zext(as_word(builder, high), I64), ir.Constant(I64, 32))
    return builder.or_(upper, builder.zext(as_word(builder, low), I64))


def _put(typing: Any, state: Any, chances: Any, unlikely: Any, used: Any) -> Any:
    """Code a bit a lane; state: rows of low ends and ranges. Bits 32..63: lanes with a carry; 0..31: lanes that take a word."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        first, second, low, upper, lower = _split(context, builder, signature, arguments)
        chosen = as_mask(builder, arguments[2])
        moved = builder.add(low, builder.select(chosen, lower, splat(_WIDE, 0)))
        ranges = builder.select(chosen, upper, lower)
        builder.store(moved, first).align = 4
        builder.store(ranges, second).align = 4
        carries = builder.icmp_unsigned("<", moved, low)
        return _both(builder, carries, builder.icmp_unsigned("<", ranges, splat(_WIDE, 1 << 16)))

    return types.uint64(state, chances, types.uint32, types.uint32), generate


def _get(typing: Any, state: Any, chances: Any, used: Any) -> Any:
    """Decode a bit a lane; state: rows of codes and ranges. Bits 32..63: less likely values; 0..31: lanes that take a word."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        first, second, code, upper, lower = _split(context, builder, signature, arguments)
        chosen = builder.icmp_unsigned(">=", code, lower)
        ranges = builder.select(chosen, upper, lower)
        builder.store(builder.sub(code, builder.select(chosen, lower, splat(_WIDE, 0))), first).align = 4
        builder.store(ranges, second).align = 4
        return _both(builder, chosen, builder.icmp_unsigned("<", ranges, splat(_WIDE, 1 << 16)))

    return types.uint64(state, chances, types.uint32), generate


def _lowest(typing: Any, word: Any) -> Any:
    """The position of the lowest one in `word`, which is not 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function = builder.module.declare_intrinsic("llvm.cttz", [I64], ir.FunctionType(I64, [I64, ir.IntType(1)]))
        return builder.call(function, [arguments[0], ir.Constant(ir.IntType(1), 1)])

    return types.int64(types.uint64), generate


steps_of = cast(Callable[[Llrs, int, Masks], np.uint32], intrinsic(_steps))
_put_row = cast(Callable[[Masks, Masks, np.uint32, np.uint32], np.uint64], intrinsic(_put))
_get_row = cast(Callable[[Masks, Masks, np.uint32], np.uint64], intrinsic(_get))
_lowest_one = cast(Callable[[np.uint64], int], intrinsic(_lowest))


def places_for(words: int) -> Places:
    """What a writer of at most `words` words keeps."""
    return np.empty(_BEFORE + words, np.int64)


@kernel
def start_writing(state: Masks, places: Places, lanes: int, words: int) -> None:
    """Begin a stream of `lanes` lanes, of at most `words` words. `state`: 64 uint32."""
    state[:LANES] = 0
    state[LANES:] = 0xFFFFFFFF
    places[0], places[1] = 2 * lanes, words
    for j in range(lanes):
        places[_NEXT + j], places[_AFTER + j], places[_LAST + j] = 2 * j, 2 * j + 1, NONE


@inlined
def look_up(steps: Masks, table: Masks, chances: Masks) -> None:
    """chances = table[steps], a row."""
    for j in range(LANES):
        chances[j] = table[steps[j]]


@kernel
def _carry(words: Words16, places: Places, lane: int) -> None:
    place = places[_LAST + lane]
    while place >= 0:
        words[place] += np.uint16(1)
        if words[place]:
            break
        place = places[_BEFORE + place]


@kernel
def _emit(state: Masks, words: Words16, places: Places, lane: int) -> None:
    """The word that lane's next place waits for, and a new place."""
    place = places[_NEXT + lane]
    words[place] = np.uint16(state[lane] >> np.uint32(16))
    places[_BEFORE + place] = places[_LAST + lane]
    places[_LAST + lane], places[_NEXT + lane], places[_AFTER + lane] = place, places[_AFTER + lane], places[0]
    places[0] += 1
    state[lane] <<= np.uint32(16)
    state[LANES + lane] <<= np.uint32(16)


@inlined
def write_row(state: Masks, chances: Masks, unlikely: np.uint32, words: Words16, places: Places, used: np.uint64) -> None:
    """Code one bit in each of the lanes `used`."""
    found = _put_row(state, chances, unlikely & np.uint32(used), np.uint32(used))
    carries, empty = (found >> np.uint64(32)) & used, found & used
    while carries:
        _carry(words, places, _lowest_one(carries))
        carries &= carries - np.uint64(1)
    while empty:
        _emit(state, words, places, _lowest_one(empty))
        empty &= empty - np.uint64(1)


@kernel
def finish_writing(state: Masks, words: Words16, places: Places, lanes: int) -> int:
    """End the stream: the number of words. Each lane's code is the least multiple of 2^16 in its interval."""
    for lane in range(lanes):
        end = (np.int64(state[lane]) + 0xFFFF) >> 16
        if end >> 16:
            _carry(words, places, lane)
        words[places[_NEXT + lane]] = np.uint16(end & 0xFFFF)
        words[places[_AFTER + lane]] = 0
    return int(places[0])


@kernel
def start_reading(state: Masks, words: Words16, lanes: int) -> None:
    """Begin to read `words`, at least 2 * lanes of them. The position afterwards is 2 * lanes."""
    state[:LANES] = 0
    state[LANES:] = 0xFFFFFFFF
    for j in range(lanes):
        state[j] = (np.uint32(words[2 * j]) << np.uint32(16)) | np.uint32(words[2 * j + 1])


@inlined
def read_row(state: Masks, chances: Masks, words: Words16, place: Places, used: np.uint64) -> np.uint32:
    """One bit of each lane: which are the less likely ones. place[0] counts the words, also those that do not exist."""
    found = _get_row(state, chances, np.uint32(used))
    empty = found & used
    while empty:
        lane = _lowest_one(empty)
        at = place[0]
        word = np.uint32(words[at]) if at < words.size else np.uint32(0)
        place[0] = at + 1
        state[lane] = (state[lane] << np.uint32(16)) | word
        state[LANES + lane] <<= np.uint32(16)
        empty &= empty - np.uint64(1)
    return np.uint32(found >> np.uint64(32))


@kernel
def ended_well(state: Masks, lanes: int) -> bool:
    """Whether every lane's code was the one that finish_writing chooses."""
    return bool((state[:lanes] < np.uint32(1 << 16)).all())
