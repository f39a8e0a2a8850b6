"""Formulas: the value of each word, compared with NumPy, and errors that are raised when a formula is defined."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from psnode.codecs.rng import Key, words
from psnode.codecs.rows import (
    Fields,
    Value,
    any_of,
    bits,
    clip,
    coin,
    count_of_all,
    f32,
    f64,
    floor,
    from_bits,
    greatest_of_all,
    halves,
    i32,
    l2_norm_of_all,
    largest,
    largest_of_all,
    least_magnitude_of_all,
    least_of_all,
    maximum,
    minimum,
    parameter,
    planes,
    random16,
    settle,
    signs,
    size_of_all,
    sqrt,
    stochastic,
    sum_of_all,
    tree_sum,
    trits,
    u32,
    where,
)  # fmt: skip
from psnode.codecs.rows.coder import Coder, Functions
from psnode.codecs.rows.compiled import compiled
from psnode.codecs.rows.cuda import text as cuda_text
from psnode.codecs.rows.formula import Program, program_of
from psnode.codecs.rows.interpreter import Interpreted
from psnode.codecs.rows.numba.text import text_of
from psnode.errors import CodecSpecError, PayloadError
from tests.codecs.family import gaussian
from tests.rows import hosted

X = gaussian(2, 512, seed=5) * np.float32(3)
ROWS = X.reshape(2, 512)
B = X.view(np.uint32)
EMPTY = np.empty(0, np.float32)


class Shown:
    """A formula that sends the upper or the lower half of the 32 bits of `make(v)`: a float32, an integer or a condition."""

    id, number, may_overflow = "shown", 250, False  # the number of DRAWN

    def __init__(self, make: Callable[[Value], Value], shift: int) -> None:
        self.make, self.shift = make, shift

    def to_fields(self, v: Value) -> Fields:
        found = self.make(v)
        found = bits(found) if found.kind.real else u32(found)
        found = found + (bits(v) & 0)  # makes a per-row number one per coordinate
        return Fields(codes=halves((found >> self.shift) & 0xFFFF))

    def from_fields(self, codes: Value) -> Value:
        return f32(i32(codes))


def shown(make: Callable[[Value], Value], functions: Callable[[Program], Functions]) -> np.ndarray:
    """Return the bits of `make(X)`."""
    found = np.zeros(X.size, np.uint32)
    for shift in (0, 16):
        coder = Coder(program_of(Shown(make, shift)), functions(program_of(Shown(make, shift))))
        body = np.empty(coder.program.nbytes(X.size), np.uint8)
        assert coder.encode(X.reshape(-1), np.array(Key.derive(3).words, np.uint64), body, EMPTY) == X.size
        found |= body.view(np.uint16).astype(np.uint32) << np.uint32(shift)
    return found.reshape(X.shape)


def row_sum(x: np.ndarray) -> Any:
    """Sum as the kernels do: lane l of 64 adds coordinates l mod 64 as pairs of pairs, then 64 lanes fold to 16, and 16 to 1."""
    lanes = []
    for lane in range(64):
        e = list(x[lane::64])
        lanes.append(((e[0] + e[1]) + (e[2] + e[3])) + ((e[4] + e[5]) + (e[6] + e[7])))
    s = [(lanes[i] + lanes[16 + i]) + (lanes[32 + i] + lanes[48 + i]) for i in range(16)]
    a, b = (((t[0] + t[1]) + (t[2] + t[3])) + ((t[4] + t[5]) + (t[6] + t[7])) for t in (s[:8], s[8:]))
    return a + b


F = np.float32
NUMBER = 250
DRAWN = words(np.array(Key.derive(3).words, np.uint64), NUMBER, 2 * 64).reshape(2, 64, 4).transpose(0, 2, 1).reshape(2, 256)
SIXTEEN = np.concatenate([DRAWN & 0xFFFF, DRAWN >> 16], axis=1).astype(np.int64)
# bit i mod 32 of word i // 32, with the words of the first 64 calls in four planes
COINS = (DRAWN[0, np.arange(1024) // 32] >> (np.arange(1024) % 32).astype(np.uint32) & 1).reshape(2, 512)
ROUNDED = (np.floor(X * F(65536)).astype(np.int64) + SIXTEEN >> 16) + 64


def rounded(v: Value) -> Value:
    """Return v rounded at random, plus 64."""
    return stochastic(v * 65536.0, -64)


WORDS: dict[str, tuple[Callable[[Value], Value], Any]] = {
    "add": (lambda v: v + 0.1, X + F(0.1)),
    "subtract from": (lambda v: 1 - v, F(1) - X),
    "multiply": (lambda v: v * v, X * X),
    "divide": (lambda v: 1 / v, F(1) / X),
    "negate": (lambda v: -v, -X),
    "abs": (lambda v: abs(v), np.abs(X)),
    "floor": (lambda v: floor(v), np.floor(X)),
    "sqrt": (lambda v: sqrt(abs(v)), np.sqrt(np.abs(X))),
    "minimum": (lambda v: minimum(v, 0.5), np.minimum(X, F(0.5))),
    "maximum": (lambda v: maximum(v, 0.5), np.maximum(X, F(0.5))),
    "clip": (lambda v: clip(v, -1, 1), np.clip(X, F(-1), F(1))),
    "where": (lambda v: where((v > 1) | (v <= -2), v, 7), np.where((X > 1) | (X <= -2), X, F(7))),
    "float64": (lambda v: f32(f64(v) / 3), (X.astype(float) / 3).astype(F)),
    "int32": (lambda v: i32(v * 100), (X * F(100)).astype(np.int32)),
    "of int32": (lambda v: f32(i32(v)), X.astype(np.int32).astype(F)),
    "of uint32": (lambda v: f32(bits(v)), B.astype(F)),
    "real parameters": (
        lambda v: f32(f64(v) / parameter(f64(0.3))) - parameter(f32(0.7)),
        (X.astype(float) / 0.3).astype(F) - F(0.7),
    ),
    "whole parameters": (
        lambda v: bits(v) * parameter(u32(4294967295)) + u32(parameter(i32(-7))),
        B * np.uint32(4294967295) + np.uint32(4294967289),
    ),
    "shift": (lambda v: (bits(v) << 3) ^ (bits(v) >> 5), (B << np.uint32(3)) ^ (B >> np.uint32(5))),
    "shift signed": (lambda v: i32(bits(v)) >> 7, B.view(np.int32) >> 7),
    "not": (lambda v: ~bits(v), ~B),
    "modulo 2^32": (lambda v: bits(v) * 2654435761 + bits(v), B * np.uint32(2654435761) + B),
    "signed modulo 2^32": (lambda v: i32(bits(v)) * 7 - 3, B.view(np.int32) * np.int32(7) - np.int32(3)),
    "condition": (lambda v: u32(~(v < 0)), (~(X < 0)).astype(np.uint32)),
    "from bits": (lambda v: from_bits(bits(v) & 0xFFFF0000), (B & np.uint32(0xFFFF0000)).view(F)),
    "largest": (lambda v: largest(v), np.abs(ROWS).max(axis=1, keepdims=True)),
    "tree_sum": (lambda v: tree_sum(v * v), np.array([[row_sum(row * row)] for row in ROWS])),
    "any_of": (lambda v: u32(any_of(v > 8.5)), (ROWS > 8.5).any(axis=1, keepdims=True).astype(np.uint32)),
    "where of a row": (lambda v: where(largest(v) > 9.7, v, -v), np.where(np.abs(ROWS).max(axis=1, keepdims=True) > 9.7, X, -X)),
    "coin": (lambda v: u32(coin()), COINS.astype(np.uint32)),
    "coins of a row": (
        lambda v: where(any_of(v > 8.5), u32(coin()), u32(v > 0)),
        np.where((ROWS > 8.5).any(axis=1, keepdims=True), COINS, ROWS > 0).astype(np.uint32),
    ),
    "rounded": (lambda v: rounded(v), ROUNDED.astype(np.uint32)),
    "rounded, and more": (
        lambda v: where(v < 0, 3 * rounded(v), rounded(v) + 7),
        np.where(X < 0, 3 * ROUNDED, ROUNDED + 7).astype(np.uint32),
    ),
    "sum of rounded": (lambda v: tree_sum(f32(i32(rounded(v)))), np.array([[row_sum(row)] for row in ROUNDED.astype(F)])),
    "any of rounded": (
        lambda v: u32(any_of(rounded(v) == 74)) + u32(any_of(rounded(v) == 60)),
        ((ROUNDED == 74).any(axis=1, keepdims=True).astype(np.uint32) + (ROUNDED == 60).any(axis=1, keepdims=True)).astype(
            np.uint32
        ),
    ),
    "sum of all": (lambda v: f32(sum_of_all(v * 3)), F(float(row_sum(ROWS[0] * F(3))) + float(row_sum(ROWS[1] * F(3))))),
    "sum of rows": (lambda v: f32(sum_of_all(largest(v))), F(np.abs(ROWS).max(axis=1).astype(float).sum())),
    "counts of all": (lambda v: count_of_all(v > 1) + 2000 * size_of_all(), np.uint32((X > 1).sum() + 2000 * X.size)),
    "largest of all": (lambda v: largest_of_all(v), np.abs(X).max()),
    "least magnitude of all": (lambda v: least_magnitude_of_all(v), np.abs(X).min()),
    "least and greatest": (lambda v: greatest_of_all(v) - least_of_all(v), X.max() - X.min()),
}


@pytest.mark.parametrize("word", WORDS)
def test_a_word_computes_what_numpy_does(word: str) -> None:
    make, expected = WORDS[word]
    assert len({bool(each) for each in np.asarray(WORDS["any_of"][1]).reshape(-1)}) == 2, "one row has such a value"
    wanted = np.broadcast_to(np.asarray(expected), X.shape)
    np.testing.assert_array_equal(shown(make, Interpreted), np.ascontiguousarray(wanted).view(np.uint32))


def mixed(v: Value) -> Value:
    """Return a combination of all words of the language, in which a change of any bit of any word shows."""
    found = bits(v)
    for make, _ in WORDS.values():
        value = make(v)
        found = found * 31 + (bits(value) if value.kind.real else u32(value))
    return found


@pytest.mark.long
def test_kernels_compute_what_the_interpreter_does() -> None:
    expected = shown(mixed, Interpreted)
    np.testing.assert_array_equal(shown(mixed, lambda program: compiled(text_of(program))), expected)


def by_numba(program: Program) -> Functions:
    return compiled(text_of(program))


def by_cuda_text(program: Program) -> Functions:
    return hosted.Hosted(hosted.build(cuda_text.text_of(program)))


with_gxx = pytest.mark.skipif(not hosted.GXX, reason="no g++")


@with_gxx
def test_cuda_text_computes_what_the_interpreter_does() -> None:
    np.testing.assert_array_equal(shown(mixed, by_cuda_text), shown(mixed, Interpreted))


class Thirds:
    """A formula that sends 2 above 1, 0 below -1, else 1, five to a byte; finiteness is checked while coding, not by a sweep."""

    id, number, may_overflow = "thirds", 250, False

    def to_fields(self, v: Value) -> Fields:
        return Fields(digits=trits(where(v > 1, u32(2), where(v < -1, u32(0), u32(1)))))

    def from_fields(self, digits: Value) -> Value:
        return f32(i32(digits)) - 1


def five_to_a_byte(digits: np.ndarray) -> bytes:
    """Pack blocks of 2560 digits: byte j of S bytes holds digits j, j + S, j + 2 S ..., the first one lowest."""
    found = []
    for start in range(0, digits.size, 2560):
        block = digits[start : start + 2560].tolist()
        stride = -(-len(block) // 5)
        block += [0] * (5 * stride - len(block))
        found += [sum(3**k * block[j + stride * k] for k in range(5)) for j in range(stride)]
    return bytes(found)


@pytest.mark.parametrize("make", [Interpreted, by_numba, pytest.param(by_cuda_text, marks=with_gxx)])
def test_five_rows_share_the_bytes_of_trits(make: Callable[[Program], Functions]) -> None:
    program = program_of(Thirds())
    coder, key = Coder(program, make(program)), np.zeros(2, np.uint64)
    for size in (1, 3, 512, 2560, 2561, 3 * 2560 + 4 * 512 + 7):
        x = gaussian(size, seed=size)
        kept = np.where(x > 1, 1, np.where(x < -1, -1, 0)).astype(np.float32)
        body, error = np.empty(program.nbytes(size), np.uint8), np.empty(size, np.float32)
        assert coder.encode(x, key, body, error) == size
        assert body.tobytes() == five_to_a_byte(kept.astype(int) + 1)
        np.testing.assert_array_equal(error, x - kept)
        sums = np.ones(size, np.float32)
        coder.check(body, size)
        coder.decode(body, sums, np.float32(0.5), True)
        np.testing.assert_array_equal(sums, 1 + kept / 2)


@pytest.mark.parametrize("make", [Interpreted, by_numba, pytest.param(by_cuda_text, marks=with_gxx)])
@pytest.mark.parametrize(("index", "done"), [(2559, 0), (2560 + 3 * 512, 2560), (2 * 2560 + 700, 5120)])
def test_a_value_that_is_not_finite_ends_the_sweep_before_the_rows_it_is_packed_with(
    make: Callable[[Program], Functions], index: int, done: int
) -> None:
    program = program_of(Thirds())
    coder, x = Coder(program, make(program)), gaussian(2 * 2560 + 900)
    x[index] = np.nan
    over, body = x.copy(), np.empty(program.nbytes(x.size), np.uint8)
    assert coder.encode(over, np.zeros(2, np.uint64), body, over) == done
    kept = np.where(x > 1, 1, np.where(x < -1, -1, 0)).astype(np.float32)[:done]
    np.testing.assert_array_equal(coder.beginning(body, x.size, done), kept)
    if make is not by_cuda_text:  # on a GPU, warps also code the units after this one
        np.testing.assert_array_equal(over, np.concatenate([x[:done] - kept, x[done:]]))


def test_bytes_that_are_no_trits_are_refused() -> None:
    program = program_of(Thirds())
    coder = Coder(program, Interpreted(program))
    for data in (b"", b"\xf3", b"\x01\x01", b"\x03"):  # one digit needs one byte, with nothing after the digit
        with pytest.raises(PayloadError, match="thirds"):
            coder.check(np.frombuffer(data, np.uint8), 1)


def refused(make: Callable[[Value], Any], decode: Callable[..., Any] = lambda codes: f32(codes)) -> str:
    class Bad(Shown):
        def to_fields(self, v: Value) -> Fields:
            return make(v)

        def from_fields(self, codes: Value) -> Value:
            return decode(codes)

    with pytest.raises(CodecSpecError) as caught:
        program_of(Bad(lambda v: v, 0))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_does_not_fit_is_refused_in_one_line() -> None:
    def good(v: Value) -> Fields:
        return Fields(codes=planes(bits(v) & 3, 2))

    assert "use where()" in refused(lambda v: good(v) if v > 0 else good(-v))
    assert "do not mix" in refused(lambda v: good(v + bits(v)))
    assert "by way of i32" in refused(lambda v: good(f32(u32(v))))
    assert "is no uint32" in refused(lambda v: good(from_bits(bits(v) & -1)))
    assert "from 0 to 31" in refused(lambda v: good(from_bits(bits(v) << 32)))
    assert "1 to 16 bits" in refused(lambda v: Fields(codes=planes(bits(v), 17)))
    assert "takes a uint32 of every coordinate" in refused(lambda v: Fields(codes=planes(u32(3), 2)))
    assert "takes a bool" in refused(lambda v: Fields(codes=signs(v)))
    assert "one packing" in refused(lambda v: Fields(top=largest(v)))
    assert "cannot go with trits" in refused(lambda v: Fields(top=largest(v), codes=trits(bits(v) & 1)))
    assert "neither a packing nor" in refused(lambda v: Fields(v=v, codes=planes(bits(v) & 3, 2)))
    assert "is to return Fields" in refused(lambda v: v)
    assert "the input of encode itself" in refused(lambda v: good(v * largest_of_all(v + v)))
    assert "the input of encode itself" in refused(lambda v: good(v * f32(l2_norm_of_all(v + v))))
    assert "takes float32 of every coordinate" in refused(lambda v: good(v * f32(sum_of_all(f32(largest_of_all(v))))))
    assert "takes float32" in refused(lambda v: good(v * f32(sum_of_all(bits(v)))))
    assert "takes bool" in refused(lambda v: good(v * f32(count_of_all(v))))
    assert "cannot be made of another one" in refused(lambda v: good(v * f32(sum_of_all(v * f32(sum_of_all(v))))))
    assert "knows the fields alone" in refused(good, lambda codes: f32(codes + size_of_all()))
    assert "is to return an f32" in refused(good, lambda codes: codes)
    assert "knows the fields alone" in refused(good, lambda codes: f32(random16()))
    assert "knows the fields alone" in refused(good, lambda codes: f32(u32(coin())))
    assert "knows the fields alone" in refused(good, lambda codes: f32(i32(codes)) * parameter(f32(0.5)))
    assert "is a constant such as" in refused(lambda v: good(v * parameter(v)))
    assert "is a constant such as" in refused(lambda v: good(v * parameter(0.5)))  # type: ignore[arg-type]
    assert "at most 4 parameters, not 5" in refused(lambda v: good(sum((parameter(f32(k)) for k in range(5)), v)))
    assert "settle takes" in refused(lambda v: Fields(codes=planes(settle(v, v), 2)))
    assert "failed: ZeroDivisionError" in refused(lambda v: good(v * (1 / 0)))


def test_a_text_is_a_function_of_the_formula_alone() -> None:
    assert text_of(program_of(Shown(mixed, 0))) == text_of(program_of(Shown(mixed, 0)))
    assert text_of(program_of(Shown(mixed, 0))) != text_of(program_of(Shown(mixed, 16)))


def test_the_value_of_a_parameter_is_not_in_the_text() -> None:
    def text(number: float) -> str:
        return text_of(program_of(Shown(lambda v: v * parameter(f32(number)), 0)))

    assert text(0.3) == text(0.7)
