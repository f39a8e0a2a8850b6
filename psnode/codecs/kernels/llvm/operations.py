"""Operations on values and arrays. Each operation is written first as LLVM instructions, then in NumPy.

tests/codecs/test_llvm.py checks that both give the same bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]

from psnode.codecs.kernels.llvm.runtime_values import BOOL, I1, I8, I32, Array, RuntimeValue, call, element, wants_hints

_LINE = 64  # bytes in a cache line


def _both(name: str, one: Any, other: Any) -> RuntimeValue:
    """Return the result of LLVM's function s`name` (signed) or u`name` (unsigned) on two vectors.

    One of them may be a constant.
    """
    model = one if isinstance(one, RuntimeValue) else other
    operands = model.operand(one), model.operand(other)
    full = f"{'s' if model.dtype.kind == 'i' else 'u'}{name}"
    return RuntimeValue(model.builder, call(model.builder, full, model.value.type, *operands), model.dtype)


def load(array: Any, start: Any, lanes: int) -> Any:
    """Return the vector array[start : start + lanes]. The bounds of the array are not checked."""
    if isinstance(array, Array):
        found = array.builder.load(array.address(start, ir.VectorType(element(array.dtype), lanes)))
        found.align = array.dtype.itemsize
        return RuntimeValue(array.builder, found, array.dtype)
    return array[start : start + lanes].copy()


def store(array: Any, start: Any, value: Any) -> None:
    """Write the bytes of `value` to `array` from element `start` on."""
    if isinstance(array, Array):
        address = array.address(start, value.value.type)
        array.builder.store(value.value, address).align = array.dtype.itemsize
    else:
        numbers = np.atleast_1d(value).view(array.dtype)
        array[start : start + numbers.size] = numbers


def prefetch(array: Any, start: Any, nbytes: int, writing: bool) -> None:
    """Prefetch `nbytes` bytes of `array` from element `start` on. They may extend past its end.

    Nothing is done in NumPy, or on processors that prefetching slows down.
    """
    if isinstance(array, Array) and wants_hints():
        address = array.address(start, I8)
        hints = [ir.Constant(I32, value) for value in (int(writing), 3, 1)]
        for offset in range(0, nbytes, _LINE):
            line = array.builder.gep(address, [ir.Constant(I32, offset)])
            call(array.builder, "prefetch.p0", ir.VoidType(), line, *hints, overloaded=False)


def spread(number: Any, lanes: int) -> Any:
    """Return the vector with `number` in every lane."""
    if isinstance(number, RuntimeValue):
        kind, builder = ir.VectorType(element(number.dtype), lanes), number.builder
        undefined = ir.Constant(kind, ir.Undefined)
        single = builder.insert_element(undefined, number.value, ir.Constant(I32, 0))
        zeros = ir.Constant(ir.VectorType(I32, lanes), [0] * lanes)
        return RuntimeValue(builder, builder.shuffle_vector(single, undefined, zeros), number.dtype)
    return np.full(lanes, number)


def unpacked(word: Any) -> Any:
    """Return the mask that has bit j of `word` in lane j."""
    if isinstance(word, RuntimeValue):
        mask = ir.VectorType(I1, 8 * word.dtype.itemsize)
        return RuntimeValue(word.builder, word.builder.bitcast(word.value, mask), BOOL)
    return np.unpackbits(np.atleast_1d(word).view(np.uint8), bitorder="little").astype(bool)


def packed(mask: Any) -> Any:
    """Return the word that has lane j of `mask` in bit j."""
    if isinstance(mask, RuntimeValue):
        lanes = mask.value.type.count
        return RuntimeValue(mask.builder, mask.builder.bitcast(mask.value, ir.IntType(lanes)), f"u{lanes // 8}")
    return np.packbits(mask, bitorder="little").view(f"u{mask.size // 8}")[0]


def select(mask: Any, one: Any, other: Any) -> Any:
    """Return a vector with `one` in the lanes where the mask is true, and `other` in the other lanes.

    One of them may be a constant.
    """
    if isinstance(mask, RuntimeValue):
        model = one if isinstance(one, RuntimeValue) else other
        return RuntimeValue(mask.builder, mask.builder.select(mask.value, model.operand(one), model.operand(other)), model.dtype)
    return np.where(mask, one, np.asarray(other, one.dtype))


def choose(condition: Any, one: Any, other: Any) -> Any:
    """Return `one` if the condition, a single number, is true, else `other`. Either may be a NumPy number of the same type."""
    if isinstance(condition, RuntimeValue):
        one, other = (_known(condition.builder, number) for number in (one, other))
        return select(condition, one, other)
    return one if condition else other


def _known(builder: Any, number: Any) -> Any:
    """Return a NumPy number as a RuntimeValue. A RuntimeValue is returned unchanged."""
    if isinstance(number, RuntimeValue):
        return number
    kind = element(number.dtype)
    return RuntimeValue(builder, ir.Constant(kind, float(number) if number.dtype.kind == "f" else int(number)), number.dtype)


def round_down(number: Any) -> Any:
    """Return the largest integer that is at most `number`, a floating-point number, in the same type."""
    return _unary("floor", number) if isinstance(number, RuntimeValue) else np.floor(number)


def square_root(number: Any) -> Any:
    """Return the square root of a floating-point number, rounded to its type."""
    return _unary("sqrt", number) if isinstance(number, RuntimeValue) else np.sqrt(number)


def _unary(name: str, number: RuntimeValue) -> RuntimeValue:
    return RuntimeValue(number.builder, call(number.builder, name, number.value.type, number.value), number.dtype)


def minimum(one: Any, other: Any) -> Any:
    """Return the smaller of two integers in each lane."""
    return _both("min", one, other) if isinstance(one, RuntimeValue) else np.minimum(one, other)


def maximum(one: Any, other: Any) -> Any:
    """Return the larger of two integers in each lane."""
    return _both("max", one, other) if isinstance(one, RuntimeValue) else np.maximum(one, other)


def absolute(one: Any) -> Any:
    """Return the magnitudes of signed integers.

    The least integer is returned unchanged, because its magnitude exceeds the type.
    """
    if isinstance(one, RuntimeValue):
        return RuntimeValue(one.builder, call(one.builder, "abs", one.value.type, one.value, ir.Constant(I1, 0)), one.dtype)
    return np.abs(one)


def add_saturated(one: Any, other: Any) -> Any:
    """Return the sums of two vectors of integers, limited to the range of the type."""
    return _both("add.sat", one, other) if isinstance(one, RuntimeValue) else _cut(one.astype(np.int64) + other, one.dtype)


def subtract_saturated(one: int, other: Any) -> Any:
    """Return the differences between a constant and integers, limited to the range of the type."""
    return _both("sub.sat", one, other) if isinstance(other, RuntimeValue) else _cut(one - other.astype(np.int64), other.dtype)


def _cut(exact: Any, dtype: Any) -> Any:
    return np.clip(exact, np.iinfo(dtype).min, np.iinfo(dtype).max).astype(dtype)


def rotate_left(word: Any, distance: int) -> Any:
    """Return a word rotated left by `distance` bits. The distance is at least 1 and less than the word's width."""
    if isinstance(word, RuntimeValue):
        arguments = word.value, word.value, word.operand(distance)
        return RuntimeValue(word.builder, call(word.builder, "fshl", word.value.type, *arguments), word.dtype)
    return (word << distance) | (word >> (8 * word.dtype.itemsize - distance))


def trailing_zeros(word: Any) -> Any:
    """Return the position of the lowest bit that is 1 in a uint64, which must not be 0, as an int64."""
    if isinstance(word, RuntimeValue):
        return RuntimeValue(word.builder, call(word.builder, "cttz", word.value.type, word.value, ir.Constant(I1, 1)), np.int64)
    return (int(word) & -int(word)).bit_length() - 1


def population(word: Any) -> Any:
    """Return the number of bits that are 1 in a uint64, as an int64."""
    if isinstance(word, RuntimeValue):
        return RuntimeValue(word.builder, call(word.builder, "ctpop", word.value.type, word.value), np.int64)
    return int(word).bit_count()


def total(vector: Any) -> Any:
    """Return the sum of a vector. Its second half is added to its first half, until one number is left.

    The number of lanes is a power of 2.
    """
    while (lanes := vector.value.type.count if isinstance(vector, RuntimeValue) else vector.size) > 1:
        half = lanes // 2
        vector = _lanes(vector, range(half)) + _lanes(vector, range(half, lanes))
    if isinstance(vector, RuntimeValue):
        return RuntimeValue(vector.builder, vector.builder.extract_element(vector.value, I32(0)), vector.dtype)
    return vector[0]


def _lanes(vector: Any, chosen: range) -> Any:
    """Return the vector of the chosen lanes."""
    if isinstance(vector, RuntimeValue):
        places = ir.Constant(ir.VectorType(I32, len(chosen)), list(chosen))
        return RuntimeValue(vector.builder, vector.builder.shuffle_vector(vector.value, vector.value, places), vector.dtype)
    return vector[chosen.start : chosen.stop]


def fma(a: Any, b: Any, c: Any) -> Any:
    """Return a * b + c for float32 numbers, rounded only once."""
    if isinstance(a, RuntimeValue):
        return RuntimeValue(a.builder, a.builder.fma(a.value, b.value, c.value), a.dtype)
    product, addend = np.float64(a) * b, np.float64(c)  # the product is exact
    total = product + addend
    back = total - product
    lost = (product - (total - back)) + (addend - back)  # the exact error (Knuth's TwoSum); NaN if total is not finite
    odd = total.view(np.int64) & 1
    nearer = np.nextafter(total, np.copysign(np.inf, lost))  # rounded to odd, which makes the second rounding harmless
    return np.where(np.isfinite(lost) & (lost != 0) & (odd == 0), nearer, total).astype(np.float32)[()]
