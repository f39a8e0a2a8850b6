"""natural by its formula: the rule of docs/payload-format.md in integers, for exponents inside and outside float32's range."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np
import pytest

from psnode.codecs import get_codec
from psnode.codecs.rng import words
from psnode.codecs.rows.coder import Coder, Functions
from psnode.codecs.rows.formula import Program
from psnode.codecs.rows.interpreter import Interpreted
from tests.codecs.family import gaussian
from tests.codecs.golden_reader import unpack_planes
from tests.rows.forms import KEY, check, program
from tests.rows.test_language import by_cuda_text, by_numba, with_gxx

NATURAL = 7
WORDS = np.array(KEY.words, np.uint64)
SIZE = 2100
DRAWN = words(WORDS, NATURAL, 5 * 64).reshape(5, 64, 4).transpose(0, 2, 1).reshape(5, 256)
SIXTEEN = np.concatenate([DRAWN & 0xFFFF, DRAWN >> 16], axis=1).reshape(-1)[:SIZE].astype(np.int64)
LARGEST = np.finfo(np.float32).max
MAKERS = [Interpreted, by_numba, pytest.param(by_cuda_text, marks=with_gxx)]


def spread(low: int, high: int, seed: int) -> np.ndarray:
    """Return values of either sign with exponents from `low` to `high`, and zeros of either sign."""
    rng = np.random.default_rng(seed)
    x = np.ldexp(1 + rng.random(SIZE), rng.integers(low, high + 1, SIZE)) * rng.choice([-1, 1], SIZE)
    return np.where(rng.random(SIZE) < 0.1, x * 0, np.clip(x, -LARGEST, LARGEST)).astype(np.float32)


def undecided(top: int) -> np.ndarray:
    """Return 2^top, 2^-149, and fractions of the lowest of 255 powers of two that 16 random bits cannot decide."""
    x = np.ldexp(0xFFFF - SIXTEEN + 0.5, top - 254 - 16).astype(np.float32)
    x[:2] = min(2.0**top, float(LARGEST)), 2.0**-149
    return x


def subjects() -> Iterator[tuple[str, np.ndarray]]:
    yield "zeros", np.array([0, -0.0] * 300, np.float32)
    yield "one", np.array([-3], np.float32)
    yield "one power", np.full(513, -4, np.float32)
    yield "the largest", np.full(600, LARGEST, np.float32)
    yield "the least", np.full(700, -(2.0**-149), np.float32)
    for number, (low, high) in enumerate(
        ((-149, 127), (-149, 105), (-149, 106), (-149, -127), (-130, -120), (-126, 127), (100, 127))
    ):
        yield f"{low} to {high}", spread(low, high, number)
    tiny = gaussian(SIZE)
    tiny[512:1024] *= np.float32(2.0**-140)
    yield "a row of tiny values", tiny
    ties = (1 + (0xFFFF - SIXTEEN + 0.5) / 65536).astype(np.float32)
    yield "ties", ties
    yield "ties beside the least", np.where(np.arange(SIZE) == 5, np.float32(2.0**-149), ties)
    yield "ties below the least kept, of 2^127", undecided(127)
    yield "ties below the least kept, of 2^128", undecided(128)


def exponent(x: Fraction) -> int:
    """Return the exponent of the power of two at or below `x`."""
    found = x.numerator.bit_length() - x.denominator.bit_length()
    return found if x >= Fraction(2) ** found else found - 1


def expected(x: np.ndarray) -> tuple[int, int, list[int], int]:
    """Return the fields, the codes, and the number of codes that 16 random bits did not decide."""
    magnitudes = [abs(Fraction(float(value))) for value in x]
    if not any(magnitudes):
        return 0, 0, [0] * x.size, 0
    most = max(magnitudes)
    top = exponent(most) + (most != Fraction(2) ** exponent(most))
    count = min(top - min(exponent(m) for m in magnitudes if m) + 1, 255)
    lowest, codes, open_ones = top - count + 1, [], 0
    for i, (value, m) in enumerate(zip(x.tolist(), magnitudes, strict=True)):
        level = max(exponent(m), lowest - 1) if m else lowest - 1
        way = m / Fraction(2) ** lowest if level < lowest else m / Fraction(2) ** level - 1
        scaled = way * 65536
        sum_of_both = scaled.numerator // scaled.denominator + int(SIXTEEN[i])
        level += sum_of_both > 0xFFFF
        if m and sum_of_both == 0xFFFF:
            further = sum(int(word) << 32 * (3 - at) for at, word in enumerate(words(WORDS, NATURAL + 256, 1, i)[0]))
            level += Fraction(further, 2**128) < scaled - scaled.numerator // scaled.denominator
            open_ones += 1
        codes.append(1 + 2 * (top - level) + (value < 0) if m and level >= lowest else 0)
    return top, count, codes, open_ones


@pytest.mark.sweep
@pytest.mark.parametrize("name", dict(subjects()))
@pytest.mark.parametrize("make", MAKERS)
def test_codes_are_those_of_the_rule(make: Callable[[Program], Functions], name: str) -> None:
    codec = get_codec("natural")
    x = dict(subjects())[name]
    top, count, codes, open_ones = expected(x)
    assert open_ones > 2000 or not name.startswith("ties")
    functions = make(program(codec))
    coder = Coder(program(codec), functions)
    body = np.empty(coder.program.nbytes(x.size), np.uint8)
    assert coder.encode(x, WORDS, body, np.empty(0, np.float32)) == x.size
    body = body[: coder.program.length(body, x.size)]
    assert (int(body[:2].view(np.int16)[0]), int(body[2:4].view(np.uint16)[0])) == (top, count)
    width = (2 * count).bit_length()
    found = unpack_planes(body[4:].tobytes(), x.size, width) if width else np.zeros(x.size, int)
    np.testing.assert_array_equal(found, codes)
    check(codec, functions, x)
