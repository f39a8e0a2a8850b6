"""Functions written as LLVM text give the same bits as their equivalents in NumPy, on random and on hard input."""

from __future__ import annotations

import ast
import operator
import os
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from importlib import import_module
from pathlib import Path
from types import GenericAlias
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from numba import carray, njit  # type: ignore[attr-defined]

import psnode
from psnode.codecs import get_codec
from psnode.codecs.kernels import bitmasks, cache_hints, cosines, rows, threefry
from psnode.codecs.kernels.llvm import lane_moves, runtime_values
from psnode.codecs.kernels.llvm import operations as ops
from psnode.codecs.kernels.llvm.instructions import floats_at, instructions, plain, viewed, wide
from psnode.codecs.polarcodes import group_order, lanes, range_coder, range_reader, range_writer, symbols
from psnode.codecs.rows.numba.text import text_of
from psnode.exchange.update import sgd
from tests.rows.forms import program

PACKAGE = Path(psnode.__file__).parent
U16, U32, U64, I16, I32, F32, F64 = np.uint16, np.uint32, np.uint64, np.int16, np.int32, np.float32, np.float64
ROW = 32
# 0, smallest, largest denormal, smallest normal, 1, largest, infinity, quiet and signalling NaNs; below, their negatives
_FLOATS = [0, 1, 0x007FFFFF, 0x00800000, 0x3F800000, 0x7F7FFFFF, 0x7F800000, 0x7FC00000, 0x7FC12345, 0x7F800001, 0x7FFFFFFF]
HARD_BITS = np.array(_FLOATS + [0x80000000 | bits for bits in _FLOATS], U32)


def compiled(function: Any) -> Callable[..., Any]:
    def run(*arguments):  # type: ignore[no-untyped-def]
        return function(*arguments)

    return njit(run)


def bits_of(value: Any) -> bytes:
    return np.asarray(value).tobytes()


def assert_same(function: Any, *arguments: Any, run: Callable[..., Any] | None = None) -> None:
    """Check that the LLVM and the NumPy form of a function return equal results and leave equal arrays."""

    def copies() -> list[Any]:
        return [each.copy() if isinstance(each, np.ndarray) else each for each in arguments]

    machine, numpys = copies(), copies()
    expected = plain(function)(*numpys)
    found = (run or compiled(function))(*machine)
    if isinstance(expected, np.generic):
        found = type(expected)(found)
    if expected is not None:
        np.testing.assert_array_equal(found, expected)
    for number, (one, other) in enumerate(zip(machine, numpys, strict=True)):
        assert bits_of(one) == bits_of(other), number


def hard(dtype: Any, size: int, rng: np.random.Generator) -> Any:
    """Return random numbers of a dtype, half of which are at the ends of its range."""
    if np.dtype(dtype) == F32:
        found = rng.integers(0, 1 << 32, size, dtype=U32)
        chosen = rng.random(size) < 0.5
        found[chosen] = rng.choice(HARD_BITS, int(chosen.sum()))
        return found.view(F32)
    ends = np.iinfo(dtype)
    found = rng.integers(ends.min, ends.max, size, dtype=dtype, endpoint=True)
    edges = [ends.min, ends.min + 1, ends.max, ends.max - 1, 0, 1, ends.max // 2 + 1]
    chosen = rng.random(size) < 0.5
    found[chosen] = rng.choice(np.array(edges, dtype), int(chosen.sum()))
    return found


def word(dtype: Any, rng: np.random.Generator) -> Any:
    return rng.choice(np.array([0, np.iinfo(dtype).max, *rng.integers(0, np.iinfo(dtype).max, 3, dtype=dtype)], dtype))


def floats_for_sums(rng: np.random.Generator) -> tuple[Any, Any]:
    """Return arrays whose pairs of values contain at most one NaN: of two NaNs, the processor decides which payload a sum
    keeps.
    """
    one, other = hard(F32, 128, rng), hard(F32, 128, rng)
    one[np.isnan(other)] = 1
    return one, other


def doubles(size: int, rng: np.random.Generator) -> Any:
    """Return float64 values of many magnitudes, including zeros of both signs."""
    return rng.standard_normal(size) * 10.0 ** rng.integers(-300, 300, size) * (rng.random(size) < 0.9)


Rng = np.random.Generator
# arguments of every function that a kernel calls as instructions
CASES: dict[Any, Callable[[Rng], tuple[Any, ...]]] = {
    threefry.encrypt: lambda r: (tuple(hard(U32, 4, r)), tuple(hard(U32, 4, r))),
    bitmasks.mask_at_least: lambda r: (hard(F32, 80, r).view(U32), 11, r.choice(HARD_BITS) & U32(bitmasks.MAGNITUDE)),
    bitmasks.mask_copied: lambda r: (hard(F32, 80, r), hard(F32, 80, r), 2, r.choice(HARD_BITS) & U32(bitmasks.MAGNITUDE)),
    bitmasks.mask_added: lambda r: (*floats_for_sums(r), 60, r.choice(HARD_BITS) & U32(bitmasks.MAGNITUDE)),
    bitmasks.lowest_one: lambda r: (U64(1 << int(r.integers(64))) | word(U64, r),),
    bitmasks.ones: lambda r: (word(U64, r),),
    cache_hints.fetch_row: lambda r: (hard(F32, 80, r), int(r.choice([0, 79, 80, 1 << 40]))),
    cache_hints.fetch_row_to_write: lambda r: (hard(F32, 80, r), int(r.choice([0, 79, 80, 1 << 40]))),
    lanes.f_row: lambda r: (hard(I16, 8 * ROW, r), 4, 1),
    lanes.g_row: lambda r: (hard(I16, 8 * ROW, r), 4, 1, word(U32, r)),
    lanes.gather_row: lambda r: (hard(I16, 8 * ROW, r), 5, 2, word(U32, r)),
    lanes.negative: lambda r: (hard(I16, 8 * ROW, r), 3),
    lanes.below: lambda r: (hard(I16, 4 * ROW, r), 3, hard(I16, 80, r), 17),
    range_coder.likely_of: lambda r: (hard(I16, 4 * ROW, r), 2, hard(U16, range_coder.STEPS, r), hard(U32, ROW, r)),
    range_reader.get_row: lambda r: (hard(U32, 2 * ROW, r), r.integers(0, 1 << 14, ROW, U32), hard(U16, 80, r), 13, word(U32, r)),
    range_writer.put_row: lambda r: (hard(U32, 4 * ROW, r), r.integers(0, 1 << 14, ROW, U32), word(U32, r), word(U32, r)),
    range_writer.note_row: lambda r: (hard(U32, 4 * ROW, r), word(U32, r), hard(U16, 1024, r), 77),
    symbols.mark_row: lambda r: (hard(U16, 4 * ROW, r), 1, word(U32, r), U16(1 << int(r.integers(16)))),
    symbols.prior_row: lambda r: (
        hard(I16, ROW, r), r.integers(0, ROW << 10, 2 * ROW, U16), 1, U16(10), hard(I16, 4 * ROW, r), 2
    ),
    group_order.copy_group: lambda r: (hard(F32, 80, r), 7, hard(F32, 80, r), 11),
    group_order.energy_of_group: lambda r: (r.standard_normal(80, F32) * F32(1e20), 7),
    rows.bits_of: lambda r: (hard(F32, 1, r)[0],),
    rows.float_of: lambda r: (hard(F32, 1, r).view(U32)[0],),
    rows.low_half: lambda r: (word(U32, r),),
    rows.high_half: lambda r: (word(U32, r),),
    rows.pack_64: lambda r: (hard(np.uint8, 80, r) & np.uint8(1), 7, hard(U32, 8, r), 3),
    rows.unpack_64: lambda r: (word(U64, r), hard(np.uint8, 80, r), 9),
    cosines.halve_rows: lambda r: (doubles(80, r), doubles(80, r), 3, 50, 17, 60, F64(r.standard_normal())),
    cosines.join_rows: lambda r: (doubles(80, r), doubles(80, r), 3, 50, 17, 60, F64(r.standard_normal())),
    cosines.add_rows: lambda r: (doubles(80, r), 3, 50, doubles(80, r), 17),
    cosines.move_row: lambda r: (doubles(80, r), 3, doubles(80, r), 17),
    sgd.multiply_add: lambda r: (hard(F32, 1, r)[0], F32(r.standard_normal()), F32(r.standard_normal())),
}  # fmt: skip


def name_of(function: Any) -> str:
    return f"{function.__module__.rpartition('.')[2]}.{function.__name__}"


def test_every_function_of_instructions_has_a_case() -> None:
    users = [path for path in PACKAGE.rglob("*.py") if b"@instructions\n" in path.read_bytes()]
    modules = [import_module(".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)) for path in users]
    found = {each for module in modules for each in vars(module).values() if hasattr(each, "equivalent")}
    of_their_own = {"instructions._wide", "instructions._floats_at", "instructions._viewed"}  # tested at the end of this module
    assert {name_of(each) for each in found - CASES.keys()} == of_their_own


def check(function: Any) -> None:
    run = compiled(function)
    for seed in range(40):
        assert_same(function, *CASES[function](np.random.default_rng(seed)), run=run)


@pytest.mark.sweep
@pytest.mark.parametrize("function", CASES, ids=name_of)
def test_instructions_and_numpy_give_the_same_bits(function: Any) -> None:
    check(function)


DEPENDENT = [
    "range_coder.likely_of",
    "range_reader.get_row",
    "range_writer.note_row",
    "symbols.prior_row",
    "sgd.multiply_add",
]


AVX2 = "+sse,+sse2,+sse3,+ssse3,+sse4.1,+sse4.2,+popcnt,+avx,+avx2,+bmi,+bmi2,+fma,+lzcnt"


@pytest.mark.parametrize(("name", "features"), [("generic", ""), ("haswell", AVX2)])
def test_they_do_on_a_processor_without_the_newest_instructions(name: str, features: str) -> None:
    """Check the functions whose text depends on the processor against their NumPy equivalents, on a generic processor, and on
    one with AVX2 and without AVX-512.
    """
    if features and not runtime_values.has("avx2"):
        pytest.skip("no AVX2")
    program = f"""
from psnode.codecs.kernels.llvm.runtime_values import has, rounds_once
from tests.codecs import test_llvm as test
assert not has("avx512bw") and not has("avx512vbmi2") and has("avx2") == {bool(features)}
for function in test.CASES:
    if test.name_of(function) in {DEPENDENT}:
        test.check(function)
        print(test.name_of(function))
if {bool(features)}:
    test.test_lanes_that_move_do_so_in_numpy_too()
"""
    environment = os.environ | {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features}
    done = subprocess.run([sys.executable, "-c", program], cwd=PACKAGE.parent, env=environment, capture_output=True, text=True)
    assert (done.returncode, sorted(done.stdout.split())) == (0, sorted(DEPENDENT)), done.stderr


def pairs(*dtypes: Any) -> list[tuple[Any, ...]]:
    return [(dtype, dtype) for dtype in dtypes]


# operations of vectors: dtypes of the operands, and the operation
OPERATIONS: dict[str, tuple[list[tuple[Any, ...]], Callable[..., Any]]] = {
    "+": (pairs(I16, U16, I32, U32), operator.add),
    "-": (pairs(I16, U16, U32), operator.sub),
    "*": (pairs(U32, I16), operator.mul),
    "&": (pairs(U32), operator.and_),
    "|": (pairs(U16), operator.or_),
    "^": (pairs(I16, U32), operator.xor),
    "<": (pairs(I16, U16, I32, U32), lambda a, b: ops.select(a < b, a, 0)),
    ">=": (pairs(I16, U32), lambda a, b: ops.select(a >= b, a, b)),
    "==": (pairs(I32, U32), lambda a, b: ops.select((a & 3) == (b & 3), a, b)),
    "masks": (pairs(U16), lambda a, b: ops.select((a < b) & (a >= 9), a, b)),
    "<< constant": ([(I16,), (U16,), (U32,)], lambda a: a << 6),
    ">> constant": ([(I16,), (U16,), (I32,), (U32,)], lambda a: a >> 7),
    ">> lanes": (pairs(I16, U32), lambda a, b: a >> (b & 15)),
    "+ constants": ([(U16,)], lambda a: np.arange(ROW, dtype=U16) + a),
    "negative": ([(I16,), (I32,), (U32,)], lambda a: -a),
    "absolute": ([(I16,), (I32,)], ops.absolute),
    "minimum": (pairs(I16, U16, U32), ops.minimum),
    "maximum": (pairs(I16, U16), ops.maximum),
    "maximum with a constant": ([(I16,)], lambda a: ops.maximum(a, -32767)),
    "add_saturated": (pairs(I16, U16), ops.add_saturated),
    "subtract_saturated": ([(I16,), (U16,)], lambda a: ops.subtract_saturated(645, a)),
    "view": ([(I16,)], lambda a: a.view(U16) >> 3),
    "wider": ([(U16,)], lambda a: a.astype(U32)),
    "wider, signed": ([(I16,)], lambda a: a.astype(I32)),
    "narrower": ([(U32,), (I32,)], lambda a: a.astype(U16)),
    "a mask as numbers": (pairs(U32), lambda a, b: (a < b).astype(U32)),
    "rotate_left": ([(U16,), (U32,)], lambda a: ops.rotate_left(a, 13)),
    "unpacked and packed": (pairs(U32), lambda a, b: ops.select(ops.unpacked(ops.packed(a < b)), a, b)),
}


@pytest.mark.sweep
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_and_numpy_give_the_same_bits(name: str) -> None:
    choices, operation = OPERATIONS[name]

    @instructions
    def one(out: Any, a: Any) -> None:
        ops.store(out, 0, operation(ops.load(a, 0, ROW)))

    @instructions
    def two(out: Any, a: Any, b: Any) -> None:
        ops.store(out, 0, operation(ops.load(a, 0, ROW), ops.load(b, 0, ROW)))

    for dtypes in choices:
        function = one if len(dtypes) == 1 else two
        run = compiled(function)
        for seed in range(40):
            rng = np.random.default_rng(seed)
            assert_same(function, np.zeros(4 * ROW, np.uint8), *(hard(dtype, ROW, rng) for dtype in dtypes), run=run)


def operations_of(kind: Any) -> list[Callable[[Any, Any], Any]]:
    """Return all operations on numbers of a type, with constants before and after the number."""
    one = kind(3)
    found: list[Callable[[Any, Any], Any]] = [
        lambda a, b: a + b,
        lambda a, b: a - b,
        lambda a, b: a * b,
        lambda a, b: -b,
        lambda a, b: one + b,
        lambda a, b: one - b,
        lambda a, b: a - one,
        lambda a, b: ((a < b) ^ (a <= b) | ~(a > b)) & (a >= b) ^ (a == b) | (a != b),
        lambda a, b: one < b,
        lambda a, b: ops.choose(a < b, one, ops.choose(a == b, b, one)),
        lambda a, b: ops.choose(a < b, one - kind(1), one),
        lambda a, b: a.astype(F64),
        lambda a, b: a.astype(F32),
    ]
    if issubclass(kind, np.floating):
        return [
            *found,
            lambda a, b: a / b,
            lambda a, b: one / b,
            lambda a, b: abs(b),
            lambda a, b: ops.round_down(b),
            lambda a, b: ops.square_root(b),
            lambda a, b: ops.choose(abs(a) < kind(1 << 30), a, kind(7.75)).astype(I32),
        ]
    return [
        *found,
        lambda a, b: a & b,
        lambda a, b: one | b,
        lambda a, b: a ^ b,
        lambda a, b: ~b,
        lambda a, b: a << one,
        lambda a, b: a >> one,
        lambda a, b: b.astype(I32),
        lambda a, b: b.astype(U32),
    ]


@pytest.mark.parametrize("kind", [F32, F64, I32, U32])
def test_operations_of_numbers_and_numpys_give_the_same_bits(kind: Any) -> None:
    def every(a: kind, b: kind, floats: Any, doubles: Any, words: Any) -> None:
        for place, operation in enumerate(operations_of(kind)):
            found = operation(a, b)
            if found.dtype == F64:
                ops.store(doubles, place, found)
            elif found.dtype == F32:
                ops.store(floats, place, found)
            else:
                ops.store(words, place, found.astype(U32))

    every.__annotations__ = {"a": kind, "b": kind, "floats": Any, "doubles": Any, "words": Any, "return": None}
    function = instructions(every)
    run, size = compiled(function), len(operations_of(kind))
    for seed in range(400):
        rng = np.random.default_rng(seed)
        one, other = doubles(2, rng) if kind is F64 else hard(kind, 2, rng)
        if np.isnan(one) and np.isnan(other):
            one = kind(1)
        found, expected = (tuple(np.zeros(size, each) for each in (F32, F64, U32)) for _ in range(2))
        run(one, other, *found)
        plain(function)(one, other, *expected)
        for mine, numpys in zip(found, expected, strict=True):
            np.testing.assert_array_equal(mine, numpys)  # not the payloads of NaNs
            np.testing.assert_array_equal(np.signbit(mine) & ~np.isnan(mine), np.signbit(numpys) & ~np.isnan(mine))


def test_results_that_are_known_when_a_kernel_is_compiled() -> None:
    @instructions
    def three(a: np.float32) -> tuple[np.uint32, bool, np.float64]:
        return U32(5) << U32(2), F32(1) < F32(2), a.astype(F64)

    assert compiled(three)(F32(0.5)) == (20, True, 0.5) == plain(three)(F32(0.5))


@pytest.mark.parametrize("writable", [True, False])
@pytest.mark.parametrize(("dtype", "other"), [(F32, U32), (np.uint8, U64), (U64, np.uint8), (I32, F64)])
def test_a_view_is_that_of_numpy(dtype: Any, other: Any, writable: bool) -> None:
    x = np.random.default_rng(5).integers(0, 250, 48).astype(dtype)
    x.flags.writeable = writable
    run = compiled(viewed)
    part = run(x[8:40], other)
    assert bits_of(part) == bits_of(plain(viewed)(x[8:40], other)) and part.dtype == other
    assert part.flags.writeable == writable and np.shares_memory(part, x)
    assert run(x[:0], other).shape == (0,)
    odd = x[:7]
    whole = odd.nbytes // np.dtype(other).itemsize
    assert bits_of(run(odd, other)) == bits_of(plain(viewed)(odd, other)) and run(odd, other).shape == (whole,)
    with pytest.raises(Exception, match="one contiguous dimension"):
        run(x[::2], other)


@pytest.mark.skipif(not lane_moves.moves(), reason="no instructions that move lanes")
def test_lanes_that_move_do_so_in_numpy_too() -> None:
    @instructions
    def both(out: Any, other: Any, a: Any, mask: np.uint32) -> None:
        chosen = ops.unpacked(mask)
        lane_moves.store_compressed(out, 3, ops.load(a, 0, ROW), chosen)
        ops.store(other, 0, lane_moves.load_expanded(a, 5, chosen))

    run = compiled(both)
    for seed in range(40):
        rng = np.random.default_rng(seed)
        mask = (word(U32, rng), U32(0), U32(2**32 - 1), U32(1 << seed % 32))[seed % 4]
        assert_same(both, np.ones(ROW + 40, U16), np.ones(ROW, U16), hard(U16, ROW + 5, rng), mask, run=run)


def test_bytes_of_eight_lanes_are_permuted_as_by_hand() -> None:
    """Check the mask of the lanes 1 and 3, which move to 0 and 1; the others give 0, for which the index is 128."""
    none = [128, 128]
    compress, expand = (lane_moves.permutations(way)[0b1010].tolist() for way in ("compress", "expand"))
    assert compress == [2, 3, 6, 7, *none * 6]
    assert expand == [*none, 0, 1, *none, 2, 3, *none * 4]


def test_numpys_multiply_add_is_rounded_once() -> None:
    """Compare NumPy's multiply-add with exact arithmetic, also for denormal results, and for sums that only a far lower bit
    moves off a float32 tie.
    """
    rng = np.random.default_rng(4)
    size = 2000
    a, b = ((1 + rng.integers(0, 1 << 12, size) * 2.0**-11).astype(F32) for _ in range(2))
    scale = 2.0 ** rng.integers(-149, 80, size)
    c = (rng.integers(-(1 << 24), 1 << 24, size) * 2.0 ** rng.integers(-60, 10, size) * scale).astype(F32)
    a = (a * scale).astype(F32)
    a[:100], b[:100] = 1 + 2.0**-12, 1 + 2.0**-12  # the product is 1 + 2^-11 + 2^-24
    c[:100] = rng.choice([-1.0, 1.0], 100) * 2.0 ** rng.integers(-149, -50, 100)
    with np.errstate(all="ignore"):
        found = ops.fma(a, b, c)
        doubled = (a.astype(np.float64) * b + c).astype(F32)
    for i in range(size):
        exact = Fraction(float(a[i])) * Fraction(float(b[i])) + Fraction(float(c[i]))
        near = [F32(float(exact))]
        near += [np.nextafter(near[0], F32(np.inf)), np.nextafter(near[0], F32(-np.inf))]
        errors = [abs(Fraction(float(value)) - exact) for value in near]
        best = [value for value, error in zip(near, errors, strict=True) if error == min(errors)]
        even = [value for value in best if value.view(U32) % 2 == 0]
        assert found[i] == (best if len(best) == 1 else even)[0], i
    assert np.count_nonzero(found != a * b + c) > 50
    assert np.count_nonzero(found != doubled) > 30  # float64 alone would not be enough


def test_floats_are_read_at_their_address() -> None:
    x = np.random.default_rng(5).standard_normal(9).astype(F32)

    @njit
    def read(address: int, size: int) -> Any:
        return carray(floats_at(address), size).copy()

    equivalent = carray(plain(floats_at)(x.ctypes.data + 4), 8)
    assert bits_of(read(x.ctypes.data + 4, 8)) == bits_of(equivalent) == bits_of(x[1:])


def test_wide_vectors_change_no_sum() -> None:
    def add(x: Any, y: Any) -> None:
        wide()
        for i in range(x.size):
            x[i] += y[i] * x[i]

    rng = np.random.default_rng(6)
    x, y = rng.standard_normal((2, 1000)).astype(F32)
    expected = x.copy()
    for i in range(x.size):
        expected[i] += y[i] * expected[i]
    njit(add)(x, y)
    assert bits_of(x) == bits_of(expected)
    plain(wide)()


@pytest.mark.parametrize(
    ("processor", "asked"), [("znver4", False), ("znver5", True), ("icelake-server", True), ("neoverse-n1", True)]
)
def test_memory_is_asked_for_ahead_where_that_is_faster(processor: str, asked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_values, "processor", lambda: (processor, ""))
    runtime_values.wants_hints.cache_clear()

    @njit
    def run(x: Any) -> None:
        cache_hints.fetch_row(x, 0)

    try:
        run(np.zeros(1024, F32))
    finally:
        runtime_values.wants_hints.cache_clear()
    [text] = run.inspect_llvm().values()
    assert ("llvm.prefetch" in text) is asked


def test_kernels_call_viewed_where_it_takes_the_array() -> None:
    """Check that kernels use `viewed` for arrays: Numba would compile a function for ndarray.view in every process and for
    every pair of types.
    """
    numbers_and_tables = {"limit_bits.view", "signed.view", "cells.view", "table.view"}
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for function in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(function, ast.FunctionDef) and {"kernel", "inlined"} & set(map(ast.unparse, function.decorator_list)):
                called = (ast.unparse(node.func) for node in ast.walk(function) if isinstance(node, ast.Call))
                found |= {name for name in called if name.endswith(".view")}
    assert found == numbers_and_tables
    for codec in ("dithered", "nuqsgd", "terngrad", "tbq", "scaledsign"):
        kernels = text_of(program(get_codec(codec))).split("@kernel")[1:]
        assert kernels and not any(".view(" in kernel for kernel in kernels)


# the second is NumPy 2.5's NDArray: an alias whose argument is a single value instead of a tuple
@pytest.mark.parametrize("array", [npt.NDArray[np.uint32], GenericAlias(np.ndarray, (np.uint32,)), Any])
def test_an_array_is_one_in_whatever_way_it_is_annotated(array: Any) -> None:
    def put(x: Any, at: int, number: np.uint32) -> None:
        ops.store(x, at, number)

    put.__annotations__ = {"x": array, "at": int, "number": np.uint32, "return": None}
    x = np.array([5, 7], U32)
    compiled(instructions(put))(x, 1, U32(9))
    assert x.tolist() == [5, 9]
