"""64 comparisons as one word, and the positions of the ones in it: what a scan for few large values is made of.

Written as vector instructions of the compiler, as it turns no loop into a mask. They lower to whatever the processor has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

LANES = 64
MAGNITUDE = 0x7FFFFFFF  # of the bits of a float32; the magnitudes of finite values are ordered as their bits are

Words32 = npt.NDArray[np.uint32]

_I1, _I32, _I64 = ir.IntType(1), ir.IntType(32), ir.IntType(64)
_ROW = ir.VectorType(_I32, LANES)


def _mask_at_least(typing: Any, bits: Any, start: Any, limit: Any) -> Any:
    """Bit j is set where the magnitude of the float32 with bits[start + j] is at least that of `limit`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        address = builder.bitcast(builder.gep(array.data, [arguments[1]]), _ROW.as_pointer())
        row = builder.load(address)
        row.align = 4
        magnitudes = builder.and_(row, ir.Constant(_ROW, [MAGNITUDE] * LANES))
        undefined = ir.Constant(_ROW, ir.Undefined)
        first = builder.insert_element(undefined, arguments[2], ir.Constant(_I32, 0))
        limits = builder.shuffle_vector(first, undefined, ir.Constant(_ROW, [0] * LANES))
        return builder.bitcast(builder.icmp_unsigned(">=", magnitudes, limits), _I64)

    return types.uint64(bits, types.intp, types.uint32), generate


def _lowest_one(typing: Any, word: Any) -> Any:
    """The position of the lowest one in `word`, which must not be 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function = builder.module.declare_intrinsic("llvm.cttz", [_I64], ir.FunctionType(_I64, [_I64, _I1]))
        return builder.call(function, [arguments[0], ir.Constant(_I1, 1)])

    return types.int64(types.uint64), generate


def _ones(typing: Any, word: Any) -> Any:
    """How many ones there are in `word`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function = builder.module.declare_intrinsic("llvm.ctpop", [_I64], ir.FunctionType(_I64, [_I64]))
        return builder.call(function, [arguments[0]])

    return types.int64(types.uint64), generate


# For use inside kernels. Nothing checks that start + 63 lies within the array.
mask_at_least = cast(Callable[[Words32, int, np.uint32], np.uint64], intrinsic(_mask_at_least))
lowest_one = cast(Callable[[np.uint64], int], intrinsic(_lowest_one))
ones = cast(Callable[[np.uint64], int], intrinsic(_ones))
