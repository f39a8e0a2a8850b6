"""The reading half of the coder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
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
    both,
    load,
    moves,
    moves_lanes,
    row_at,
    scattered,
    splat,
)  # fmt: skip

Places = npt.NDArray[np.int64]


class Reader(NamedTuple):
    """Rows of codes and of ranges; the number of words taken so far, also of those that do not exist, and of all; the words."""

    state: Masks
    place: Places
    words: Words16


def _get(typing: Any, state: Any, chances: Any, words: Any, place: Any, used: Any) -> Any:
    """Decode a bit a lane. Bits 32..63: less likely values; 0..31: lanes that take a word: where lanes move they have it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        state, chances, words, place, used = arguments
        code, upper, lower = split(context, builder, signature, state, chances, used)
        chosen = builder.icmp_unsigned(">=", code, lower)
        ranges = builder.select(chosen, upper, lower)
        code = builder.sub(code, builder.select(chosen, lower, splat(WIDE, 0)))
        empty = builder.and_(narrow(builder, ranges), as_mask(builder, used))
        if moves(context):
            row = load(builder, at(context, builder, signature.args[2], words, place, ROW))
            taken = builder.zext(scattered(builder, row, empty), WIDE)
            code, ranges = builder.or_(widened(builder, empty, code), taken), widened(builder, empty, ranges)
        for number, value in enumerate((code, ranges)):
            builder.store(value, row_at(context, builder, signature.args[0], state, number, WIDE)).align = 4
        return both(builder, as_word(builder, chosen), as_word(builder, empty))

    return types.uint64(state, chances, words, types.intp, types.uint32), generate


_get_row = cast(Callable[[Masks, Masks, Words16, int, np.uint32], np.uint64], intrinsic(_get))


def reader(words: Words16, lanes: int) -> Reader:
    """Of `words`, at least 2 * lanes of them."""
    state = np.zeros(2 * LANES, np.uint32)
    state[LANES:] = 0xFFFFFFFF
    state[:lanes] = (words[: 2 * lanes : 2].astype(np.uint32) << np.uint32(16)) | words[1 : 2 * lanes : 2]
    return Reader(state, np.array([2 * lanes, words.size], np.int64), np.concatenate([words, np.zeros(LANES, np.uint16)]))


@inlined
def read_row(state: Masks, place: Places, words: Words16, chances: Masks, used: np.uint64) -> np.uint32:
    """One bit of each lane: which are the less likely ones."""
    found = _get_row(state, chances, words, min(place[0], place[1]), np.uint32(used))
    empty = found & np.uint64(0xFFFFFFFF)
    if moves_lanes():
        place[0] += ones(empty)
    else:
        while empty:
            lane = lowest_one(empty)
            state[lane] = (state[lane] << np.uint32(16)) | np.uint32(words[min(place[0], place[1])])
            state[LANES + lane] <<= np.uint32(16)
            place[0] += 1
            empty &= empty - np.uint64(1)
    return np.uint32(found >> np.uint64(32))


@kernel
def ended_well(state: Masks, lanes: int) -> bool:
    """True if every lane's code was the one that finish_writing chooses."""
    return bool((state[:lanes] < np.uint32(1 << 16)).all())
