"""Sums and counts over a whole input: every implementation uses the order of docs/payload-format.md."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from psnode.codecs import get_codec
from psnode.codecs.kernels.trees import count_512, tree_of
from psnode.codecs.registry import load_codec
from psnode.codecs.rng import Key
from psnode.codecs.rows import (
    Fields,
    RowCodec,
    Value,
    bits,
    coin,
    count_of_all,
    f32,
    f64,
    from_bits,
    halves,
    i32,
    planes,
    signs,
    size_of_all,
    sum_of_all,
    tree_sum,
    u32,
    where,
)  # fmt: skip
from psnode.codecs.rows.coder import Coder, Functions, SumCoder
from psnode.codecs.rows.compiled import compiled
from psnode.codecs.rows.formula import Program, program_of
from psnode.codecs.rows.interpreter import Interpreted, _tree_of
from psnode.codecs.rows.language import given
from psnode.codecs.rows.numba.text import text_of
from psnode.errors import CodecSpecError, NonFiniteGradientError
from tests.codecs.family import fed_back, gaussian
from tests.codecs.low_bit_oracle import coins
from tests.rows.test_language import EMPTY, by_cuda_text, by_numba, row_sum, with_gxx

KEY = Key.derive(3)
NUMBER = 250
SIZES = (1, 511, 513, 512 * 512 + 700)  # sizes of one tree, and of more


def in_two_sweeps(make: Callable[[Program], Functions]) -> Callable[[Program], Coder]:
    return lambda program: Coder(program, make(program))


def in_one_sweep(program: Program) -> Coder:
    assert program.sums_beside
    return SumCoder(program, compiled(text_of(program)))


CODERS = [
    in_two_sweeps(Interpreted),
    in_two_sweeps(by_numba),
    pytest.param(in_two_sweeps(by_cuda_text), marks=with_gxx),
    in_one_sweep,
]


class Summed:
    """A formula with sums of values and of rows' numbers, two float32 each, and counts of known and of drawn values."""

    id, number, may_overflow = "summed", NUMBER, False

    def to_fields(self, v: Value) -> Fields:
        size = f64(size_of_all())
        mean, magnitude = sum_of_all(v) / size, sum_of_all(abs(v)) / size
        return Fields(
            mean=f32(mean),
            rest=f32(mean - f64(f32(mean))),
            magnitude=f32(magnitude),
            rows=f32(sum_of_all(tree_sum(where(v > 1, f32(1), 0)))),
            above=count_of_all(v > 1),
            tossed=count_of_all(coin()),
            size=size_of_all(),
            negative=signs(v < 0),
        )

    def from_fields(
        self, mean: Value, rest: Value, magnitude: Value, rows: Value, above: Value, tossed: Value, size: Value, negative: Value
    ) -> Value:
        return where(negative, f32(-1), 1)


def folded(sums: list[float]) -> float:
    """Return the sum of the numbers: 512 of them become one at a time, until one is left."""
    while len(sums) > 1:
        sums += [0.0] * (-len(sums) % 512)
        sums = [float(row_sum(np.array(sums[start : start + 512]))) for start in range(0, len(sums), 512)]
    return sums[0]


def summed(x: np.ndarray) -> float:
    """Return the sum of x: rows in float32, scaled by 2^-10 if they are beyond its range, then trees in float64."""
    rows = np.concatenate([x, np.zeros(-x.size % 512, np.float32)]).reshape(-1, 512)
    with np.errstate(all="ignore"):
        found = [float(row_sum(row)) for row in rows]
        small = rows * np.float32(2.0**-10)
        return folded([s if math.isfinite(s) else 1024 * float(row_sum(small[i])) for i, s in enumerate(found)])


def inputs(size: int) -> dict[str, np.ndarray]:
    x = gaussian(size)
    largest = np.full(size, np.finfo(np.float32).max, np.float32)
    return {
        "gaussian": x,
        "denormals": (x * np.float32(2.0**-140)).astype(np.float32),
        "the largest": largest,
        "the largest of either sign": largest * np.sign(x),
        "zeros": np.zeros(size, np.float32),
        "zeros below": np.full(size, -0.0, np.float32),
        "above": np.full(size, 1.5, np.float32),
    }


@pytest.mark.sweep
@pytest.mark.parametrize("coder_of", CODERS)
def test_sums_have_one_order_and_counts_are_exact(coder_of: Callable[[Program], Coder]) -> None:
    program = program_of(Summed())
    coder = coder_of(program)
    for size in SIZES:
        for name, x in inputs(size).items():
            body = np.empty(program.nbytes(size), np.uint8)
            assert coder.encode(x, np.array(KEY.words, np.uint64), body, EMPTY) == size
            numbers = body[: 4 * program.side_words(size)].view(np.uint32)
            mean, magnitude = summed(x) / size, summed(np.abs(x)) / size
            expected = [np.float32(mean), np.float32(mean - float(np.float32(mean))), np.float32(magnitude)]
            above = int((x > 1).sum())
            counts = [above, int(coins(KEY.words, NUMBER, size).sum()), size]
            assert numbers.tolist() == [*np.array([*expected, above], np.float32).view(np.uint32).tolist(), *counts], (name, size)
            assert magnitude == pytest.approx(float(np.abs(x.astype(np.float64)).mean()), rel=1e-6)


@pytest.mark.parametrize("coder_of", CODERS)
def test_a_value_that_is_not_finite_is_refused_before_anything_is_coded(coder_of: Callable[[Program], Coder]) -> None:
    program = program_of(Summed())
    coder = coder_of(program)
    for index in (0, 700, 1029):
        for value in (np.nan, np.inf, -np.inf):
            x = gaussian(1030)
            x[index] = value
            over = x.copy()
            assert coder.encode(over, np.array(KEY.words, np.uint64), np.empty(program.nbytes(1030), np.uint8), over) == 0
            np.testing.assert_array_equal(over, x)


def test_a_sum_of_more_than_two_trees() -> None:
    sums = gaussian(512 * 512 + 3).astype(np.float64) ** 3
    expected = folded(sums.tolist())
    assert _tree_of(sums) == expected
    assert tree_of(sums.copy()) == expected
    assert expected == pytest.approx(math.fsum(sums), abs=1e-10)


@pytest.mark.parametrize("count", [0, 1, 64, 511, 512])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_what_holds_in_a_row_is_counted(count: int, share: float) -> None:
    holds = np.random.default_rng(count).random(512) < share
    assert count_512(holds, count) == np.count_nonzero(holds[:count])
    assert count_512(holds.astype(np.uint8), count) == np.count_nonzero(holds[:count])


MEANS = """
from dataclasses import dataclass
from psnode.codecs.rows import Fields, RowCodec, Value, f32, f64, signs, size_of_all, sum_of_all, where
from psnode.codecs.traits import Traits

@dataclass(frozen=True, repr=False)
class Means(RowCodec):
    id = "means"
    number = 194
    traits = Traits(one_scale=True)

    def to_fields(self, v):
        return Fields(mean=f32(sum_of_all(abs(v)) / f64(size_of_all())), negative=signs(v < 0))

    def from_fields(self, mean, negative):
        return where(negative, -mean, mean)
"""


def test_a_codec_with_sums_takes_parts_beforehand(tmp_path: Path) -> None:
    """Compare error feedback in one sweep with its three steps. A gradient with a value that is not finite is refused."""
    (tmp_path / "means.py").write_text(MEANS)
    codec = get_codec(load_codec(f"{tmp_path / 'means.py'}:Means"))
    for size in (1, 700, 30_001):
        gradient, residual = gaussian(size), gaussian(size, seed=1)
        total = gradient + residual
        expected = codec.encode(total, KEY, error=total)
        assert fed_back(codec, gradient, KEY, residual) == expected
        np.testing.assert_array_equal(residual, total)
        mean = np.float32(summed(np.abs(gradient + gaussian(size, seed=1))) / size)
        np.testing.assert_array_equal(np.abs(codec.decode(expected)), np.full(size, mean))
    gradient[20_000] = np.nan
    with pytest.raises(NonFiniteGradientError, match="20000"):
        fed_back(codec, gradient, KEY, np.zeros(30_001, np.float32))


class Halved:
    """A formula that sends the high halves of values and the sum of their magnitudes, without fields per row."""

    id, number, may_overflow = "halved", NUMBER, False

    def to_fields(self, v: Value) -> Fields:
        return Fields(total=f32(sum_of_all(abs(v))), codes=halves(bits(v) >> 16))

    def from_fields(self, total: Value, codes: Value) -> Value:
        return from_bits(codes << 16)


@pytest.mark.sweep
@pytest.mark.parametrize("coder_of", CODERS)
@pytest.mark.parametrize("size", [1, 512, 1300])
def test_halves_are_summed_beside(coder_of: Callable[[Program], Coder], size: int) -> None:
    x = (np.arange(size) - size // 2).astype(np.float32)  # whole numbers, whose sums are exact
    coder = coder_of(program_of(Halved()))
    body, error = np.zeros(coder.program.nbytes(size), np.uint8), np.empty(size, np.float32)
    assert coder.encode(x, np.array(KEY.words, np.uint64), body, error) == size
    kept = (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    assert body[:4].view(np.float32)[0] == np.abs(x).sum()
    np.testing.assert_array_equal(body[4:].view(np.uint16), (x.view(np.uint32) >> 16).astype(np.uint16))
    np.testing.assert_array_equal(error, x - kept)


@dataclass(frozen=True, repr=False)
class Given(RowCodec):
    """A user's own codec whose formula contains a number that the caller must write before encoding, which is refused."""

    id = "given"
    number = 196

    def to_fields(self, v: Value) -> Fields:
        return Fields(scale=given(), codes=planes(u32(v > 0), 1))

    def from_fields(self, scale: Value, codes: Value) -> Value:
        return f32(i32(codes)) * scale


def test_a_number_that_is_given_is_no_codecs_own() -> None:
    with pytest.raises(CodecSpecError, match="a number that is given"):
        Given().encode(np.ones(10, np.float32), KEY)
