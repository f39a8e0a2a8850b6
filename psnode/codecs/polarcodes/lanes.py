"""Rows of 32 log-likelihood ratios in int16, one of each of 32 blocks: the steps of successive cancellation on them.

A log-likelihood ratio (LLR) ln P(0) / P(1) is an integer in units of 1 / UNIT nats, within +-32767. With a and b those of
two bits and u the value of their sum,

    f(a, b) = sign(a) sign(b) (min(|a|, |b|) + c(|a| + |b|) - c(||a| - |b||)),   c(t) = ln(1 + e^-t)
    g(a, b, u) = b + a if u = 0, else b - a, cut off at +-32767

are the LLRs of u, and of b's bit given u. c is taken as ln 2 (1 - t / t0)^4 for t < t0 = 645 units, else 0, in 16-bit
products: f errs by less than .03 nats. Decisions are words, bit j for lane j. Vector instructions are written as such, because
the compiler turns no loop into 16-bit lanes; they lower to whatever the processor has, and are exact.

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

LANES = 32
UNIT = 116.3
LARGEST = 32767
_CUT = 645

Llrs = npt.NDArray[np.int16]
Masks = npt.NDArray[np.uint32]

I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
_ROW, _WIDE, _MASK = (ir.VectorType(kind, LANES) for kind in (I16, I32, I1))


def splat(kind: Any, value: int) -> Any:
    """A vector of `kind` with `value` in every lane."""
    return ir.Constant(kind, [value] * LANES)


def at(context: Any, builder: Any, array_type: Any, array: Any, start: Any, kind: Any) -> Any:
    """The address of element `start` of an array, as one of a `kind`."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [start]), kind.as_pointer())


def row_at(context: Any, builder: Any, array_type: Any, array: Any, row: Any, kind: Any) -> Any:
    """The address of the 32 lanes of row `row`."""
    return at(context, builder, array_type, array, builder.mul(row, ir.Constant(row.type, LANES)), kind)


def load(builder: Any, address: Any, align: int = 2) -> Any:
    """What lies at `address`."""
    value = builder.load(address)
    value.align = align
    return value


def call(builder: Any, name: str, *arguments: Any) -> Any:
    """LLVM's intrinsic `name` of vectors of int16."""
    full = f"llvm.{name}.v{LANES}i16"
    function = builder.module.globals.get(full)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(_ROW, [argument.type for argument in arguments]), full)
    return builder.call(function, arguments)


def as_mask(builder: Any, word: Any) -> Any:
    """Bit j of a uint32 as the truth of lane j."""
    return builder.bitcast(word, _MASK)


def as_word(builder: Any, mask: Any) -> Any:
    """The truth of lane j as bit j of a uint32."""
    return builder.bitcast(mask, I32)


def _high(builder: Any, a: Any, b: Any) -> Any:
    """The upper halves of unsigned products."""
    product = builder.mul(builder.zext(a, _WIDE), builder.zext(b, _WIDE))
    return builder.trunc(builder.lshr(product, splat(_WIDE, 16)), _ROW)


def _square(builder: Any, t: Any) -> Any:
    """The square root of 2^23 c(t)."""
    short = builder.shl(call(builder, "usub.sat", splat(_ROW, _CUT), t), splat(_ROW, 6))
    return _high(builder, short, short)


def _check_node(builder: Any, a: Any, b: Any) -> Any:
    """f(a, b)."""
    one, other = (call(builder, "abs", v, ir.Constant(I1, 0)) for v in (a, b))
    low, high = call(builder, "umin", one, other), call(builder, "umax", one, other)
    near, far = _square(builder, builder.sub(high, low)), _square(builder, builder.add(high, low))
    product = _high(builder, builder.sub(near, far), builder.add(near, far))
    size = builder.sub(low, builder.lshr(product, splat(_ROW, 7)))
    sign = builder.ashr(builder.xor(a, b), splat(_ROW, 15))
    return builder.sub(builder.xor(size, sign), sign)


def _bit_node(builder: Any, a: Any, b: Any, word: Any) -> Any:
    """g(a, b, u)."""
    signed = builder.select(as_mask(builder, word), builder.sub(splat(_ROW, 0), a), a)
    return call(builder, "smax", call(builder, "sadd.sat", b, signed), splat(_ROW, -LARGEST))


def _f(typing: Any, llrs: Any, n: Any, i: Any) -> Any:
    """Row n // 2 + i = f(row n + i, row n + n // 2 + i)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        llrs, n, i = arguments
        half = builder.lshr(n, ir.Constant(n.type, 1))
        first, target = builder.add(n, i), builder.add(half, i)
        rows = [row_at(context, builder, signature.args[0], llrs, r, _ROW) for r in (first, builder.add(first, half), target)]
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
        rows = [row_at(context, builder, signature.args[0], llrs, r, _ROW) for r in (first, builder.add(first, half), target)]
        value = _bit_node(builder, load(builder, rows[0]), load(builder, rows[1]), word)
        builder.store(value, rows[2]).align = 2
        return context.get_dummy_value()

    return types.void(llrs, types.intp, types.intp, types.uint32), generate


def _gather(typing: Any, llrs: Any, row: Any, word: Any) -> Any:
    """Row 0 = g(row, row 0, word): adds up the LLRs of bits that are all equal once those of `word` are turned around."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        llrs, row, word = arguments
        total = row_at(context, builder, signature.args[0], llrs, ir.Constant(row.type, 0), _ROW)
        source = row_at(context, builder, signature.args[0], llrs, row, _ROW)
        value = _bit_node(builder, load(builder, source), load(builder, total), word)
        builder.store(value, total).align = 2
        return context.get_dummy_value()

    return types.void(llrs, types.intp, types.uint32), generate


def _negative(typing: Any, llrs: Any, row: Any) -> Any:
    """Which lanes of the row are below 0: the likelier bits, 0 where both are equally likely."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        llrs, row = arguments
        address = row_at(context, builder, signature.args[0], llrs, row, _ROW)
        return as_word(builder, builder.icmp_signed("<", load(builder, address), splat(_ROW, 0)))

    return types.uint32(llrs, types.intp), generate


def _below(typing: Any, llrs: Any, row: Any, limits: Any, start: Any) -> Any:
    """Which lanes of the row are below limits[start + lane]."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        llrs, row, limits, start = arguments
        address = row_at(context, builder, signature.args[0], llrs, row, _ROW)
        other = at(context, builder, signature.args[2], limits, start, _ROW)
        return as_word(builder, builder.icmp_signed("<", load(builder, address), load(builder, other)))

    return types.uint32(llrs, types.intp, limits, types.intp), generate


# For use inside kernels. Nothing checks that rows exist.
f_row = cast(Callable[[Llrs, int, int], None], intrinsic(_f))
g_row = cast(Callable[[Llrs, int, int, np.uint32], None], intrinsic(_g))
gather_row = cast(Callable[[Llrs, int, np.uint32], None], intrinsic(_gather))
negative = cast(Callable[[Llrs, int], np.uint32], intrinsic(_negative))
below = cast(Callable[[Llrs, int, Llrs, int], np.uint32], intrinsic(_below))
