"""Rows of 32 log-likelihood ratios in int16, one of each of 32 blocks: the steps of successive cancellation on them.

A log-likelihood ratio (LLR) ln P(0) / P(1) is an integer in units of 1 / UNIT nats, within +-32767. With a and b those of
two bits and u the value of their sum,

    f(a, b) = sign(a) sign(b) (min(|a|, |b|) + c(|a| + |b|) - c(||a| - |b||)),   c(t) = ln(1 + e^-t)
    g(a, b, u) = b + a if u = 0, else b - a, cut off at +-32767

are the LLRs of u, and of b's bit given u. c is taken as ln 2 (1 - t / t0)^4 for t < t0 = 645 units, else 0, in 16-bit
products: f errs by less than .03 nats. Decisions are words, bit j for lane j.

Source: Arikan, "Channel polarization", IEEE Trans. IT 2009; the form of f: Hagenauer, Offer, Papke, IEEE Trans. IT 1996.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from psnode.codecs.polarcodes.vectors import I1, ROW, WIDE, as_mask, as_word, at, call, load, row_at, splat

UNIT = 116.3
LARGEST = 32767
_CUT = 645

Llrs = npt.NDArray[np.int16]
Masks = npt.NDArray[np.uint32]


def _high(builder: Any, a: Any, b: Any) -> Any:
    """The upper halves of unsigned products."""
    product = builder.mul(builder.zext(a, WIDE), builder.zext(b, WIDE))
    return builder.trunc(builder.lshr(product, splat(WIDE, 16)), ROW)


def _square(builder: Any, t: Any) -> Any:
    """The square root of 2^23 c(t)."""
    short = builder.shl(call(builder, "usub.sat", splat(ROW, _CUT), t), splat(ROW, 6))
    return _high(builder, short, short)


def _check_node(builder: Any, a: Any, b: Any) -> Any:
    """f(a, b)."""
    one, other = (call(builder, "abs", v, ir.Constant(I1, 0)) for v in (a, b))
    low, high = call(builder, "umin", one, other), call(builder, "umax", one, other)
    near, far = _square(builder, builder.sub(high, low)), _square(builder, builder.add(high, low))
    product = _high(builder, builder.sub(near, far), builder.add(near, far))
    size = builder.sub(low, builder.lshr(product, splat(ROW, 7)))
    sign = builder.ashr(builder.xor(a, b), splat(ROW, 15))
    return builder.sub(builder.xor(size, sign), sign)


def _bit_node(builder: Any, a: Any, b: Any, word: Any) -> Any:
    """g(a, b, u)."""
    signed = builder.select(as_mask(builder, word), builder.sub(splat(ROW, 0), a), a)
    return call(builder, "smax", call(builder, "sadd.sat", b, signed), splat(ROW, -LARGEST))


def _f(typing: Any, llrs: Any, n: Any, i: Any) -> Any:
    """Row n // 2 + i = f(row n + i, row n + n // 2 + i)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        llrs, n, i = arguments
        half = builder.lshr(n, ir.Constant(n.type, 1))
        first, target = builder.add(n, i), builder.add(half, i)
        rows = [row_at(context, builder, signature.args[0], llrs, r, ROW) for r in (first, builder.add(first, half), target)]
        value = _check_node(builder, load(builder, rows[0]), load(builder, rows[1]))
        builder.store(value, rows[2]).align = 2
        return context.get_dummy_value()

    return types.void(llrs, types.intp, types.intp), generate


def _g(typing: Any, llrs: Any, n: Any, i: Any, word: Any) -> Any:
    """Row n // 2 + i = g(row n + i, row n + n // 2 + i, word)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        llrs, n, i, word = arguments
        half = builder.lshr(n, ir.Constant(n.type, 1))
        first, target = builder.add(n, i), builder.add(half, i)
        rows = [row_at(context, builder, signature.args[0], llrs, r, ROW) for r in (first, builder.add(first, half), target)]
        value = _bit_node(builder, load(builder, rows[0]), load(builder, rows[1]), word)
        builder.store(value, rows[2]).align = 2
        return context.get_dummy_value()

    return types.void(llrs, types.intp, types.intp, types.uint32), generate


def _gather(typing: Any, llrs: Any, row: Any, word: Any) -> Any:
    """Row 0 = g(row, row 0, word): adds up the LLRs of bits that are all equal once those of `word` are turned around."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        llrs, row, word = arguments
        total = row_at(context, builder, signature.args[0], llrs, ir.Constant(row.type, 0), ROW)
        source = row_at(context, builder, signature.args[0], llrs, row, ROW)
        value = _bit_node(builder, load(builder, source), load(builder, total), word)
        builder.store(value, total).align = 2
        return context.get_dummy_value()

    return types.void(llrs, types.intp, types.uint32), generate


def _negative(typing: Any, llrs: Any, row: Any) -> Any:
    """Mask of the lanes of the row below 0: the likelier bits, 0 where both are equally likely."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        llrs, row = arguments
        address = row_at(context, builder, signature.args[0], llrs, row, ROW)
        return as_word(builder, builder.icmp_signed("<", load(builder, address), splat(ROW, 0)))

    return types.uint32(llrs, types.intp), generate


def _below(typing: Any, llrs: Any, row: Any, limits: Any, start: Any) -> Any:
    """Mask of the lanes of the row below limits[start + lane]."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        llrs, row, limits, start = arguments
        address = row_at(context, builder, signature.args[0], llrs, row, ROW)
        other = at(context, builder, signature.args[2], limits, start, ROW)
        return as_word(builder, builder.icmp_signed("<", load(builder, address), load(builder, other)))

    return types.uint32(llrs, types.intp, limits, types.intp), generate


# For use inside kernels. Nothing checks that rows exist.
f_row = cast(Callable[[Llrs, int, int], None], intrinsic(_f))
g_row = cast(Callable[[Llrs, int, int, np.uint32], None], intrinsic(_g))
gather_row = cast(Callable[[Llrs, int, np.uint32], None], intrinsic(_gather))
negative = cast(Callable[[Llrs, int], np.uint32], intrinsic(_negative))
below = cast(Callable[[Llrs, int, Llrs, int], np.uint32], intrinsic(_below))
