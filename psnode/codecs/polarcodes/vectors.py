"""Rows of 32 lanes as vectors of the compiler's own language, for the steps of the codec.

Numba turns no loop into 16-bit lanes; these instructions lower to whatever the processor has. The few that only newer ones have
are asked for by name where `has` finds them; the code that runs elsewhere gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

LANES = 32

I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
ROW, WIDE, MASK = (ir.VectorType(kind, LANES) for kind in (I16, I32, I1))


def splat(kind: Any, value: int) -> Any:
    """A vector of `kind` with `value` in every lane."""
    return ir.Constant(kind, [value] * LANES)


def spread(builder: Any, kind: Any, value: Any) -> Any:
    """The same with a value that is known when the program runs."""
    undefined = ir.Constant(kind, ir.Undefined)
    single = builder.insert_element(undefined, value, ir.Constant(I32, 0))
    return builder.shuffle_vector(single, undefined, splat(WIDE, 0))


def at(context: Any, builder: Any, array_type: Any, array: Any, start: Any, kind: Any) -> Any:
    """The address of element `start` of an array, as one of a `kind`."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [start]), kind.as_pointer())


def row_at(context: Any, builder: Any, array_type: Any, array: Any, row: Any, kind: Any) -> Any:
    """The address of the 32 lanes of row `row`, a number or a value."""
    first = ir.Constant(I64, LANES * row) if isinstance(row, int) else builder.mul(row, ir.Constant(row.type, LANES))
    return at(context, builder, array_type, array, first, kind)


def load(builder: Any, address: Any, align: int = 2) -> Any:
    """The vector at `address`."""
    value = builder.load(address)
    value.align = align
    return value


def call(builder: Any, name: str, *arguments: Any, suffix: str = f".v{LANES}i16", result: Any = ROW) -> Any:
    """LLVM's intrinsic `name` of vectors of int16."""
    full = f"llvm.{name}{suffix}"
    function = builder.module.globals.get(full)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(result, [argument.type for argument in arguments]), full)
    return builder.call(function, arguments)


def as_mask(builder: Any, word: Any) -> Any:
    """Bit j of a uint32 as the truth of lane j."""
    return builder.bitcast(word, MASK)


def as_word(builder: Any, mask: Any) -> Any:
    """The truth of lane j as bit j of a uint32."""
    return builder.bitcast(mask, I32)


def both(builder: Any, high: Any, low: Any) -> Any:
    """Two uint32 as one uint64."""
    upper = builder.shl(builder.zext(high, I64), ir.Constant(I64, 32))
    return builder.or_(upper, builder.zext(low, I64))


def has(context: Any, feature: str) -> bool:
    """True if the processor that is compiled for has a `feature`, by LLVM's name of it."""
    return f"+{feature}" in context.codegen().magic_tuple()[2].split(",")


def pick(context: Any, builder: Any, table: Any, index: Any, size: int) -> Any:
    """table[index] lane by lane: `table` the address of `size` numbers of 16 bits, 32 or 64, `index` below that."""
    if has(context, "avx512bw"):
        first = load(builder, builder.bitcast(table, ROW.as_pointer()))
        if size == LANES:
            return call(builder, "x86.avx512.permvar.hi.512", first, index, suffix="")
        second = load(builder, builder.bitcast(builder.gep(table, [ir.Constant(I64, LANES)]), ROW.as_pointer()))
        return call(builder, "x86.avx512.vpermi2var.hi.512", first, index, second, suffix="")
    result = ir.Constant(ROW, ir.Undefined)
    for lane in range(LANES):
        place = builder.zext(builder.extract_element(index, ir.Constant(I32, lane)), I64)
        result = builder.insert_element(result, load(builder, builder.gep(table, [place])), ir.Constant(I32, lane))
    return result


def moves(context: Any) -> bool:
    """True if `gathered` and `scattered` are there."""
    return has(context, "avx512vbmi2")


def gathered(builder: Any, values: Any, mask: Any) -> Any:
    """The values of the lanes in `mask`, moved together to the first lanes."""
    return call(builder, "x86.avx512.mask.compress", values, splat(ROW, 0), mask)


def scattered(builder: Any, values: Any, mask: Any) -> Any:
    """The first values, moved apart to the lanes in `mask`; 0 in the others."""
    return call(builder, "x86.avx512.mask.expand", values, splat(ROW, 0), mask)


def _moves_lanes(typing: Any) -> Any:
    """True if lanes can be moved together and apart: known when a kernel is compiled."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return ir.Constant(I1, int(moves(context)))

    return types.boolean(), generate


moves_lanes = cast(Callable[[], bool], intrinsic(_moves_lanes))
