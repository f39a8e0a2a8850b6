"""Look-ups in small tables of 16-bit numbers, 32 at a time, in the way for which the processor has instructions."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]

from psnode.codecs.kernels.llvm.operations import load
from psnode.codecs.kernels.llvm.runtime_values import I32, I64, Array, RuntimeValue, call, has

_BYTES = 16  # entries of a table that one instruction for bytes can choose from


def pick(table: Any, index: Any, size: int) -> Any:
    """Return table[index] for each of 32 lanes.

    The table holds `size` (32 or 64) numbers of 16 bits, and every index is below `size`.
    """
    if not isinstance(table, Array):
        return table[index]
    ways = {"avx512bw": _whole, "avx2": _by_bytes}
    return next((way for feature, way in ways.items() if has(feature)), _one_by_one)(table, index, size)


def _whole(table: Array, index: RuntimeValue, size: int) -> RuntimeValue:
    """Choose from one or two registers of 32 numbers with one instruction."""
    kind = index.value.type
    parts = [load(table, start, kind.count).value for start in range(0, size, kind.count)]
    name = "vpermi2var" if len(parts) == 2 else "permvar"
    found = call(table.builder, f"x86.avx512.{name}.hi.512", kind, parts[0], index.value, *parts[1:], overloaded=False)
    return RuntimeValue(table.builder, found, table.dtype)


def _by_bytes(table: Array, index: RuntimeValue, size: int) -> RuntimeValue:
    """Choose the low and the high bytes from sixteen entries at a time, and combine them.

    The instruction gives 0 if the highest bit of an index is set, so the results for all parts of the table are combined by `or`.
    """
    builder, lanes = table.builder, index.value.type.count
    entries = load(table, 0, size)
    halves = entries.astype(np.uint8), (entries >> 8).astype(np.uint8)
    place = index.astype(np.uint8)
    found = [RuntimeValue(builder, place.operand(0), np.uint8)] * 2
    for start in range(0, size, _BYTES):
        near = call(builder, "uadd.sat", place.value.type, (place - start).value, place.operand(0x80 - _BYTES))
        around = ir.Constant(ir.VectorType(I32, lanes), [start + lane % _BYTES for lane in range(lanes)])
        for which, half in enumerate(halves):
            part = builder.shuffle_vector(half.value, half.value, around)
            chosen = call(builder, "x86.avx2.pshuf.b", place.value.type, part, near, overloaded=False)
            found[which] |= RuntimeValue(builder, chosen, np.uint8)
    low, high = (each.astype(np.uint16) for each in found)
    numbers = low | high << 8
    return RuntimeValue(builder, numbers.value, table.dtype)


def _one_by_one(table: Array, index: RuntimeValue, size: int) -> RuntimeValue:
    builder, kind = table.builder, index.value.type
    found = ir.Constant(kind, ir.Undefined)
    for lane in map(I32, range(kind.count)):
        place = builder.zext(builder.extract_element(index.value, lane), I64)
        entry = builder.load(table.address(RuntimeValue(builder, place, np.int64), kind.element))
        entry.align = table.dtype.itemsize
        found = builder.insert_element(found, entry, lane)
    return RuntimeValue(builder, found, table.dtype)
