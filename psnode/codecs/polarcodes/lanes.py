"""Rows of 32 log-likelihood ratios in int16, one for each of 32 blocks, and the steps of successive cancellation on them.

A log-likelihood ratio (LLR) ln P(0) / P(1) is an integer in units of 1 / UNIT nats, within +-32767. Let a and b be the LLRs of
two bits, and u the sum of the bits modulo 2. Then

    f(a, b) = sign(a) sign(b) (min(|a|, |b|) + c(|a| + |b|) - c(||a| - |b||)),   c(t) = ln(1 + e^-t)
    g(a, b, u) = b + a if u = 0, else b - a, limited to +-32767

are the LLR of u, and the LLR of the second bit given u. The function c is approximated, in 16-bit products, by ln 2 (1 - t /
t0)^4 for t < t0 = 645 units, else by 0. The error of f is then less than .03 nats. Decisions on a row of bits are a 32-bit
word, with bit j for lane j.

Source: Arikan, "Channel polarization", IEEE Trans. IT 2009; the form of f: Hagenauer, Offer, Papke, IEEE Trans. IT 1996.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from psnode.codecs.kernels.llvm.instructions import instructions
from psnode.codecs.kernels.llvm.operations import (
    absolute,
    add_saturated,
    load,
    maximum,
    minimum,
    packed,
    select,
    subtract_saturated,
    unpacked,
)
from psnode.codecs.polarcodes.vectors import LANES, load_row, store_row

UNIT = 116.3
LARGEST = 32767
_CUT = 645

Llrs = npt.NDArray[np.int16]
Masks = npt.NDArray[np.uint32]


def _high(a: Any, b: Any) -> Any:
    """Return the upper halves of the products of a and b, which are multiplied as unsigned 32-bit numbers."""
    return ((a.astype(np.uint32) * b.astype(np.uint32)) >> 16).astype(np.uint16)


def _square(t: Any) -> Any:
    """Return the square root of 2^23 c(t), where c(t) approximates ln(1 + e^-t)."""
    short = subtract_saturated(_CUT, t) << 6
    return _high(short, short)


def _check_node(a: Any, b: Any) -> Any:
    """Return f(a, b), the LLR of the sum of two bits whose LLRs are a and b."""
    one, other = absolute(a).view(np.uint16), absolute(b).view(np.uint16)
    low, high = minimum(one, other), maximum(one, other)
    near, far = _square(high - low), _square(high + low)
    product = _high(near - far, near + far)
    size = (low - (product >> 7)).view(np.int16)
    sign = (a ^ b) >> 15
    return (size ^ sign) - sign


def _bit_node(a: Any, b: Any, word: Any) -> Any:
    """Return g(a, b, u), the LLR of the second of two bits whose LLRs are a and b, given their sum u in `word`."""
    return maximum(add_saturated(b, select(unpacked(word), -a, a)), -LARGEST)


# The functions below are for use inside kernels. They do not check that rows exist.


@instructions
def f_row(llrs: Llrs, n: int, i: int) -> None:
    """Write f(row n + i, row n + n // 2 + i) to row n // 2 + i."""
    half = n >> 1
    first = n + i
    store_row(llrs, half + i, _check_node(load_row(llrs, first), load_row(llrs, first + half)))


@instructions
def g_row(llrs: Llrs, n: int, i: int, word: np.uint32) -> None:
    """Write g(row n + i, row n + n // 2 + i, word) to row n // 2 + i."""
    half = n >> 1
    first = n + i
    store_row(llrs, half + i, _bit_node(load_row(llrs, first), load_row(llrs, first + half), word))


@instructions
def gather_row(llrs: Llrs, row: int, target: int, word: np.uint32) -> None:
    """Write g(row, row target, word) to row `target`.

    Repeated calls add up the LLRs of bits that become equal when the bits in `word` are flipped.
    """
    store_row(llrs, target, _bit_node(load_row(llrs, row), load_row(llrs, target), word))


@instructions
def negative(llrs: Llrs, row: int) -> np.uint32:
    """Return the mask of the lanes in which the row is below 0. These are the likelier bits; ties give 0."""
    return packed(load_row(llrs, row) < 0)  # type: ignore[no-any-return]


@instructions
def below(llrs: Llrs, row: int, limits: Llrs, start: int) -> np.uint32:
    """Return the mask of the lanes in which the row is below limits[start + lane]."""
    return packed(load_row(llrs, row) < load(limits, start, LANES))  # type: ignore[no-any-return]
