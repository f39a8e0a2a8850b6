"""Hints to the processor, which change how fast a kernel is and never its results.

A kernel that works on one block at a time in the first-level cache lets the memory idle while it computes, unless the next
block is asked for beforehand. And processors of the Ice Lake family and later lose nothing with vectors of 512 bits, which LLVM
avoids for the sake of earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

LINE = 64  # bytes in a line of the cache
AHEAD = 1024  # float32 values: how far ahead `fetch_row` is to be asked
_ROW = 2048  # bytes: 512 float32
_WIDE = '"prefer-vector-width"="512"'
_I8, _I32 = ir.IntType(8), ir.IntType(32)
_NAME = "llvm.prefetch.p0"
_PREFETCH = ir.FunctionType(ir.VoidType(), [_I8.as_pointer(), _I32, _I32, _I32])


def _prefetch(context: Any, builder: Any, kind: Any, array: Any, start: Any, nbytes: int, writing: int) -> Any:
    data = builder.gep(context.make_array(kind)(context, builder, array).data, [start])
    address = builder.bitcast(data, _I8.as_pointer())
    fetch = builder.module.globals.get(_NAME) or ir.Function(builder.module, _PREFETCH, _NAME)
    hints = [ir.Constant(_I32, value) for value in (writing, 3, 1)]
    for offset in range(0, nbytes, LINE):
        builder.call(fetch, [builder.gep(address, [ir.Constant(_I32, offset)]), *hints])


def _fetching(writing: int) -> Any:
    def typed(typing: Any, array: Any, start: Any) -> Any:
        """Ask for the 2048 bytes of `array` from element `start` on. They may lie beyond its end."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            _prefetch(context, builder, signature.args[0], arguments[0], arguments[1], _ROW, writing)
            return context.get_dummy_value()

        return types.void(array, types.intp), generate

    return typed


def _wide(typing: Any) -> Any:
    """Let LLVM use vectors of 512 bits in the function that calls this, where they are no slower for being wide."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        features = context.codegen().magic_tuple()[2]
        if "+avx512vbmi2" in features:
            set.add(builder.function.attributes, _WIDE)  # llvmlite knows attributes with a value by name only
        return context.get_dummy_value()

    return types.void(), generate


fetch_row = cast(Callable[[npt.NDArray[Any], int], None], intrinsic(_fetching(0)))
fetch_row_to_write = cast(Callable[[npt.NDArray[Any], int], None], intrinsic(_fetching(1)))
wide = cast(Callable[[], None], intrinsic(_wide))
