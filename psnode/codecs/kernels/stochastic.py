"""Stochastic rounding of 512 coordinates at a time to codes of one byte: floor((v - shift) factor / 2^16 + U) - lowest, exactly
unbiased for (v - shift) factor as float32 arithmetic has it. See psnode.codecs.kernels.fixed_point.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from psnode.codecs.arrays import Bytes, Floats, Words32
from psnode.codecs.kernels.fixed_point import ONES, UNIT, fixed_point, goes_up, is_tie
from psnode.codecs.kernels.jit import inlined, kernel
from psnode.codecs.kernels.memory import AHEAD, fetch_row, wide
from psnode.codecs.rng import BLOCK, Draws, fill

ROW = 512
_HALF = ROW // 2
_SIXTEEN = 16


class Rule(NamedTuple):
    """A value v is rounded to floor((v - shift) factor / 2^16 + U) - lowest."""

    shift: np.float32
    factor: np.float32
    lowest: int


def factor_of(span: np.float32, steps: int) -> np.float32:
    """The largest float32 f with span f <= 2^16 steps, as float32 multiplies; 0 if span is 0. `span` in 2^-100..2^125."""
    if not span:
        return np.float32(0)
    factor = np.float32(steps * UNIT / float(span))
    while span * factor > steps * UNIT:
        factor = np.nextafter(factor, np.float32(0))
    return factor


@inlined
def _round_row(v: Floats, shift: np.float32, factor: np.float32, zero: np.uint32, words: Words32, codes: Bytes) -> bool:
    """Codes of 512 values; whether there is a tie. Coordinate i < 256 takes the low half of words[i], i + 256 the high one."""
    ones, sixteen = np.uint32(ONES), np.uint32(_SIXTEEN)
    worst = np.uint32(0)
    for i in range(_HALF):
        t = fixed_point((v[i] - shift) * factor, zero, words[i] & ones)
        u = fixed_point((v[_HALF + i] - shift) * factor, zero, words[i] >> sixteen)
        worst = max(worst, max(np.uint32(t & ones), np.uint32(u & ones)))
        codes[i] = np.uint8(t >> sixteen)
        codes[_HALF + i] = np.uint8(u >> sixteen)
    return bool(worst == ones)


@kernel
def _settle_ties(
    v: Floats, shift: np.float32, factor: np.float32, zero: np.uint32, draws: Draws, first: int, words: Words32, codes: Bytes
) -> None:
    for i in range(ROW):
        word = np.uint32(words[i] & np.uint32(ONES)) if i < _HALF else np.uint32(words[i - _HALF] >> np.uint32(_SIXTEEN))
        a = (v[i] - shift) * factor
        if is_tie(fixed_point(a, zero, word)) and goes_up(np.float64(a), draws.key, draws.stream, first + i):
            codes[i] += np.uint8(1)


@kernel
def round_rows(v: Floats, rule: Rule, draws: Draws, first: int, words: Words32, codes: Bytes) -> None:
    """Round full rows to `codes`, which `rule` makes 0..255; the first begins at coordinate `first`.

    Row n of the array takes the words of calls 64 n .. 64 n + 63. `words`: scratch, 256. `rule` is taken apart before the loop:
    handed on whole it makes the loop slower by a third.
    """
    wide()
    shift, factor, zero = rule.shift, rule.factor, np.uint32(-rule.lowest * UNIT)
    for start in range(0, v.size, ROW):
        fetch_row(v, start + AHEAD)
        fill(words, draws.key, draws.stream, (first + start) // ROW * BLOCK)
        row, place = v[start : start + ROW], codes[start : start + ROW]
        if _round_row(row, shift, factor, zero, words, place):
            _settle_ties(row, shift, factor, zero, draws, first + start, words, place)
