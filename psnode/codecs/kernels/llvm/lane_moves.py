"""Numbers of 16 bits that move from chosen lanes of a vector to the front of an array, and from there to chosen lanes.

With AVX-512 one instruction moves all 32 lanes. With AVX2, an instruction that permutes the bytes of a register moves eight
lanes, by the permutation that a table holds for every mask of eight bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]

from psnode.codecs.kernels.llvm.operations import load, packed, population, store
from psnode.codecs.kernels.llvm.runtime_values import I8, I32, I64, Array, RuntimeValue, call, has

_WHOLE = "avx512vbmi2"
_PART = 8  # lanes in a register of 128 bits
_NOWHERE = 0x80  # the instruction gives 0 for a byte of this index


def moves() -> bool:
    """Return True if the processor has instructions for `store_compressed` and `load_expanded`."""
    return has(_WHOLE) or has("avx2")


def store_compressed(array: Any, start: Any, values: Any, mask: Any) -> None:
    """Write the uint16 `values` of the lanes where `mask` is true to `array`, one after another from element `start` on.

    As many elements as there are lanes are written; the rest of them are 0.
    """
    if not isinstance(values, RuntimeValue):
        found = values[mask]
        array[start : start + values.size] = np.concatenate([found, np.zeros(values.size - found.size, values.dtype)])
    elif has(_WHOLE):
        store(array, start, _moved("compress", values, mask))
    else:
        builder, lanes = values.builder, values.value.type.count
        store(array, start, RuntimeValue(builder, ir.Constant(values.value.type, [0] * lanes), values.dtype))
        for lane, byte, before in _parts(mask):
            part = builder.shuffle_vector(values.value, values.value, _numbers(range(lane, lane + _PART)))
            store(array, start + before, _permuted(builder, part, byte, "compress"))


def load_expanded(array: Any, start: Any, mask: Any) -> Any:
    """Return a vector with the uint16 numbers from element `start` on in the lanes where `mask` is true, and 0 in the others.

    As many elements as there are lanes must exist, but one is taken only for each lane of the mask.
    """
    if not isinstance(mask, RuntimeValue):
        found = np.zeros(mask.size, array.dtype)
        found[mask] = array[start : start + int(mask.sum())]
        return found
    if has(_WHOLE):
        return _moved("expand", load(array, start, mask.value.type.count), mask)
    builder = mask.builder
    parts = [
        _permuted(builder, load(array, start + before, _PART).value, byte, "expand").value for _, byte, before in _parts(mask)
    ]
    while len(parts) > 1:  # join neighbours
        both = _numbers(range(2 * parts[0].type.count))
        parts = [builder.shuffle_vector(one, other, both) for one, other in zip(parts[::2], parts[1::2], strict=True)]
    return RuntimeValue(builder, parts[0], array.dtype)


def _moved(name: str, values: RuntimeValue, mask: RuntimeValue) -> RuntimeValue:
    arguments = values.value, values.operand(0), mask.value
    return RuntimeValue(
        values.builder, call(values.builder, f"x86.avx512.mask.{name}", values.value.type, *arguments), values.dtype
    )


def _parts(mask: RuntimeValue) -> list[tuple[int, RuntimeValue, RuntimeValue]]:
    """Return for every eight lanes: the first lane, their bits of the mask, and the number of lanes before them in the mask."""
    word = packed(mask).astype(np.uint64)
    found = []
    for lane in range(0, mask.value.type.count, _PART):
        found.append((lane, (word >> lane) & 0xFF, population(word & ((1 << lane) - 1))))
    return found


def _permuted(builder: Any, part: Any, byte: RuntimeValue, way: str) -> RuntimeValue:
    """Return the eight numbers `part` permuted as the table `way` says for the mask `byte`."""
    table, kind = _table(builder.module, way), ir.VectorType(I8, 2 * _PART)
    permutation = load(Array(builder, table, np.uint8), byte * (2 * _PART), 2 * _PART)
    bits = builder.bitcast(part, kind)
    moved = call(builder, "x86.ssse3.pshuf.b.128", kind, bits, permutation.value, overloaded=False)
    return RuntimeValue(builder, builder.bitcast(moved, part.type), np.uint16)


def _table(module: Any, way: str) -> Any:
    """Return a pointer to the permutations of bytes for all masks of eight lanes. The module has them once."""
    name = f"psnode.{way}"
    found = module.globals.get(name)
    if found is None:
        numbers = permutations(way).ravel().tolist()
        kind = ir.ArrayType(I8, len(numbers))
        found = ir.GlobalVariable(module, kind, name)
        found.global_constant, found.linkage, found.initializer = True, "internal", ir.Constant(kind, numbers)
    return found.gep([ir.Constant(I64, 0), ir.Constant(I64, 0)])


def permutations(way: str) -> npt.NDArray[np.uint8]:
    """Return, for each mask of eight lanes of two bytes, the index of the byte that each byte of the result comes from."""
    found = np.full((1 << _PART, _PART, 2), _NOWHERE, np.uint8)
    for mask in range(1 << _PART):
        lanes = [lane for lane in range(_PART) if mask >> lane & 1]
        for place, lane in enumerate(lanes):
            source, goal = (lane, place) if way == "compress" else (place, lane)
            found[mask, goal] = 2 * source, 2 * source + 1
    return found.reshape(1 << _PART, 2 * _PART)


def _numbers(values: Any) -> Any:
    return ir.Constant(ir.VectorType(I32, len(values)), list(values))
