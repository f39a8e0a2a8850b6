"""64 comparisons as one word, and the positions of the ones in it, for scans that look for few large values.

Written as vector instructions of the compiler, as it turns no loop into a mask. They lower to whatever the processor has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from psnode.codecs.arrays import Floats, Words32

LANES = 64
MAGNITUDE = 0x7FFFFFFF  # of the bits of a float32; the magnitudes of finite values are ordered as their bits are


_I1, _I32, _I64, _F32 = ir.IntType(1), ir.IntType(32), ir.IntType(64), ir.FloatType()
_ROW = ir.VectorType(_I32, LANES)


def _row(context: Any, builder: Any, array_type: Any, array: Any, start: Any, kind: Any) -> Any:
    """The address of the row of lanes of type `kind` that starts at `start`."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [start]), ir.VectorType(kind, LANES).as_pointer())


def _compare(builder: Any, row: Any, limit: Any) -> Any:
    magnitudes = builder.and_(row, ir.Constant(_ROW, [MAGNITUDE] * LANES))
    undefined = ir.Constant(_ROW, ir.Undefined)
    first = builder.insert_element(undefined, limit, ir.Constant(_I32, 0))
    limits = builder.shuffle_vector(first, undefined, ir.Constant(_ROW, [0] * LANES))
    return builder.bitcast(builder.icmp_unsigned(">=", magnitudes, limits), _I64)


def _load(builder: Any, address: Any) -> Any:
    row = builder.load(address)
    row.align = 4
    return row


def _mask_at_least(typing: Any, bits: Any, start: Any, limit: Any) -> Any:
    """Bit j is set where the magnitude of the float32 with bits[start + j] is at least that of `limit`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _row(context, builder, signature.args[0], arguments[0], arguments[1], _I32)
        return _compare(builder, _load(builder, address), arguments[2])

    return types.uint64(bits, types.intp, types.uint32), generate


def _mask_written(add: bool) -> Any:
    def typed(typing: Any, x: Any, target: Any, start: Any, limit: Any) -> Any:
        """Write x (or add it) to 64 places of target, from `start` on of both, and compare the results."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            source = _row(context, builder, signature.args[0], arguments[0], arguments[2], _F32)
            place = _row(context, builder, signature.args[1], arguments[1], arguments[2], _F32)
            row = _load(builder, source)
            if add:
                row = builder.fadd(_load(builder, place), row)
            builder.store(row, place).align = 4
            return _compare(builder, builder.bitcast(row, _ROW), arguments[3])

        return types.uint64(x, target, types.intp, types.uint32), generate

    return typed


def _lowest_one(typing: Any, word: Any) -> Any:
    """The position of the lowest one in `word`, which must not be 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function = builder.module.declare_intrinsic("llvm.cttz", [_I64], ir.FunctionType(_I64, [_I64, _I1]))
        return builder.call(function, [arguments[0], ir.Constant(_I1, 1)])

    return types.int64(types.uint64), generate


def _ones(typing: Any, word: Any) -> Any:
    """Number of ones in `word`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function = builder.module.declare_intrinsic("llvm.ctpop", [_I64], ir.FunctionType(_I64, [_I64]))
        return builder.call(function, [arguments[0]])

    return types.int64(types.uint64), generate


# For use inside kernels. Nothing checks that start + 63 lies within the array.
mask_at_least = cast(Callable[[Words32, int, np.uint32], np.uint64], intrinsic(_mask_at_least))
mask_copied = cast(Callable[[Floats, Floats, int, np.uint32], np.uint64], intrinsic(_mask_written(False)))
mask_added = cast(Callable[[Floats, Floats, int, np.uint32], np.uint64], intrinsic(_mask_written(True)))
lowest_one = cast(Callable[[np.uint64], int], intrinsic(_lowest_one))
ones = cast(Callable[[np.uint64], int], intrinsic(_ones))
