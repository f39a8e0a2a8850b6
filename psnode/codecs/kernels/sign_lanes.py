"""From 64 float32 to 64 bits and back: vector instructions, written as such because the compiler turns no loop into a mask.

They lower to whatever the processor has, and are exact: results are the same everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from psnode.codecs.arrays import Bytes, Floats, Words32

GROUP = 64
_MAGNITUDE = 0x7FFFFFFF

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_BITS, _FLOATS = ir.VectorType(_I32, GROUP), ir.VectorType(ir.FloatType(), GROUP)
_MASK = ir.VectorType(ir.IntType(1), GROUP)


def _address(context: Any, builder: Any, kind: Any, row: Any, array: Any, start: Any) -> Any:
    """The address of 64 values of `array` from index `start` on."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [start]), row.as_pointer())


def _load(builder: Any, address: Any) -> Any:
    row = builder.load(address)
    row.align = 4
    return row


def _level(builder: Any, mask: Any, low: Any, high: Any) -> Any:
    """`low` where `mask` has a one, else `high`."""
    none = ir.Constant(_FLOATS, ir.Undefined)
    lanes = ir.Constant(_BITS, [0] * GROUP)
    low, high = (builder.shuffle_vector(builder.insert_element(none, v, ir.Constant(_I32, 0)), none, lanes) for v in (low, high))
    return builder.select(builder.bitcast(mask, _MASK), low, high)


def _masks(typing: Any, bits: Any, start: Any, negative: Any, zero: Any, at: Any) -> Any:
    """negative[at:at+8], zero[at:at+8]: which of the 64 float32 with bits[start:] have a sign bit, and which are zero."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        row = _load(builder, _address(context, builder, signature.args[0], _BITS, arguments[0], arguments[1]))
        nothing = ir.Constant(_BITS, [0] * GROUP)
        magnitude = builder.and_(row, ir.Constant(_BITS, [_MAGNITUDE] * GROUP))
        found = builder.icmp_signed("<", row, nothing), builder.icmp_unsigned("==", magnitude, nothing)
        for place, mask in zip((2, 3), found, strict=True):
            address = _address(context, builder, signature.args[place], _I64, arguments[place], arguments[4])
            builder.store(builder.bitcast(mask, _I64), address).align = 1
        return context.get_dummy_value()

    return types.void(bits, types.intp, negative, zero, types.intp), generate


def _put(typing: Any, mask: Any, low: Any, high: Any, out: Any, start: Any) -> Any:
    """out[start:start+64] = low where `mask` has a one, else high."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _address(context, builder, signature.args[3], _FLOATS, arguments[3], arguments[4])
        builder.store(_level(builder, *arguments[:3]), address).align = 4
        return context.get_dummy_value()

    return types.void(types.uint64, types.float32, types.float32, out, types.intp), generate


def _add(typing: Any, mask: Any, low: Any, high: Any, source: Any, out: Any, start: Any) -> Any:
    """out[start:start+64] = source[start:start+64] + (low where `mask` has a one, else high)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, out, start = arguments[3:]
        row = _load(builder, _address(context, builder, signature.args[3], _FLOATS, source, start))
        total = builder.fadd(row, _level(builder, *arguments[:3]))
        builder.store(total, _address(context, builder, signature.args[4], _FLOATS, out, start)).align = 4
        return context.get_dummy_value()

    return types.void(types.uint64, types.float32, types.float32, source, out, types.intp), generate


# For use inside kernels. Nothing checks that start + 63 lies within the arrays.
store_masks = cast(Callable[[Words32, int, Bytes, Bytes, int], None], intrinsic(_masks))
put_levels = cast(Callable[[np.uint64, np.float32, np.float32, Floats, int], None], intrinsic(_put))
add_levels = cast(Callable[[np.uint64, np.float32, np.float32, Floats, Floats, int], None], intrinsic(_add))
