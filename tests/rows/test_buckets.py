"""Buckets of rows: their numbers, codes with the width of the bucket's largest code, and random bits that decode also uses."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from psnode.codecs import get_codec
from psnode.codecs.kernels.planes import packed_nbytes
from psnode.codecs.rows import (
    Fields,
    Value,
    bits,
    f32,
    fitted,
    floor,
    i32,
    interpreter,
    key_word,
    l2_norm_of_bucket,
    largest,
    place_in_row,
    planes,
    random16,
    size_of_bucket,
    sum_of_all,
    u32,
)  # fmt: skip
from psnode.codecs.rows.coder import Coder, Functions
from psnode.codecs.rows.formula import Program, program_of
from psnode.codecs.rows.interpreter import Interpreted
from psnode.codecs.rows.numpy_words import norm_of
from psnode.errors import CodecSpecError, PayloadError
from tests.codecs.family import gaussian
from tests.codecs.golden_reader import unpack_planes
from tests.codecs.test_dithered import dither
from tests.codecs.threefry_oracle import halves
from tests.rows.forms import KEY, check, program
from tests.rows.test_language import by_cuda_text, by_numba, with_gxx

WORDS = np.array(KEY.words, np.uint64)
MAKERS = [Interpreted, by_numba, pytest.param(by_cuda_text, marks=with_gxx)]
ROWS = 3
BUCKET = 512 * ROWS


class Whole:
    """A formula that sends magnitudes without fractions; decode adds random bits of the previous coordinate, and the
    coordinate's position.
    """

    id, number, may_overflow = "whole", 250, False

    def __init__(self, most: int, period: int = 64) -> None:
        self.most, self.period = most, period

    def to_fields(self, v: Value) -> Fields:
        norm, size = f32(l2_norm_of_bucket(v, ROWS)), size_of_bucket(ROWS)
        keys = {f"key{number}": key_word(number) for number in range(4)}
        return Fields(one=u32(1), **keys, norm=norm, size=size, codes=fitted(u32(i32(floor(abs(v)))), ROWS, self.most))

    def from_fields(
        self, one: Value, key0: Value, key1: Value, key2: Value, key3: Value, norm: Value, size: Value, codes: Value
    ) -> Value:
        beside = f32(i32(random16(self.period))) * 2.0**-16 + f32(i32(place_in_row()))
        return f32(i32(codes)) + beside + f32(i32(size)) * 0


def inputs(size: int, most: int) -> np.ndarray:
    """Return buckets of different widths, the last of maximal width."""
    scale = 2.0 ** (np.arange(size) // BUCKET * 3 % most - 1.0)
    x = np.clip(gaussian(size) * scale, 0.25 - 2.0**most, 2.0**most - 0.25).astype(np.float32)
    x[-1] = 0.5 - 2.0**most
    x[: min(size - 1, BUCKET)] *= np.float32(2.0**-20)
    return x


def beside(size: int, period: int) -> np.ndarray:
    place = np.arange(size) % 512
    drawn = halves(KEY.words, 250, -(-size // 512) * 512)[np.arange(size) - place + place % period]
    return drawn.astype(np.float32) * np.float32(2.0**-16) + place.astype(np.float32)


@pytest.mark.sweep
@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(("most", "period"), [(7, 64), (11, 32), (16, 256), (8, 512)])
def test_a_bucket_has_numbers_and_as_many_bits_as_its_largest_code(
    make: Callable[[Program], Functions], most: int, period: int
) -> None:
    made = program_of(Whole(most, period))
    coder = Coder(made, make(made))
    for size in (1, 3, 512, BUCKET, BUCKET + 1, 9 * BUCKET + 777):
        x = inputs(size, most)
        body, error = np.full(made.nbytes(size), 0xAA, np.uint8), np.empty(size, np.float32)
        assert coder.encode(x, WORDS, body, error) == size
        body = body[: made.length(body, size)]
        coder.check(body, size)
        parts = [x[start : start + BUCKET] for start in range(0, size, BUCKET)]
        buckets, whole = len(parts), np.floor(np.abs(x))
        numbers = body[: 4 * (5 + 2 * buckets)]
        assert numbers[:20].view(np.uint32).tolist() == [1, *np.array(KEY.words, np.uint64).view(np.uint32).tolist()]
        assert numbers[20:].view(np.float32)[:buckets].tolist() == [np.float32(norm_of(part)) for part in parts]
        assert numbers[20:].view(np.uint32)[buckets:].tolist() == [part.size for part in parts]
        at = numbers.size + -(-buckets // 4) * 4
        widths = [int(np.abs(part).max()).bit_length() for part in parts]
        assert body[numbers.size : at].tolist() == widths + [0] * (-buckets % 4)
        assert widths[-1] == most and (size <= BUCKET or widths[0] == 0)
        for width, part in zip(widths, parts, strict=True):
            nbytes = packed_nbytes(part.size, width) if width else 0
            found = unpack_planes(body[at : at + nbytes].tobytes(), part.size, width) if width else np.zeros(part.size)
            np.testing.assert_array_equal(found, np.floor(np.abs(part)))
            at += nbytes
        assert at == body.size
        decoded = whole.astype(np.float32) + beside(size, period)
        np.testing.assert_array_equal(error, x - decoded)
        sums = np.ones(size, np.float32)
        coder.decode(body, sums, np.float32(0.5), True)
        np.testing.assert_array_equal(sums, 1 + decoded / 2)
        coder.decode(body, sums, np.float32(1), False)
        np.testing.assert_array_equal(sums, decoded)


@pytest.mark.sweep
@pytest.mark.parametrize("make", MAKERS)
def test_a_bucket_that_is_not_finite_ends_the_sweep_and_those_before_it_are_coded(make: Callable[[Program], Functions]) -> None:
    made = program_of(Whole(9))
    coder, size = Coder(made, make(made)), 3 * BUCKET + 100
    for at, done in ((0, 0), (BUCKET - 1, 0), (BUCKET + 700, BUCKET), (3 * BUCKET + 1, 3 * BUCKET)):
        x = gaussian(size) * np.float32(5)
        x[at] = np.inf
        body = np.zeros(made.nbytes(size), np.uint8)
        assert coder.encode(x, WORDS, body, np.empty(0, np.float32)) == done
        expected = np.floor(np.abs(x[:done])) + beside(done, 64)
        np.testing.assert_array_equal(coder.beginning(body, size, done), expected)


def test_bodies_that_encode_never_writes_are_refused() -> None:
    made = program_of(Whole(7))
    coder, size = Coder(made, Interpreted(made)), BUCKET + 5
    room = np.empty(made.nbytes(size), np.uint8)
    coder.encode(np.full(size, 5, np.float32), WORDS, room, np.empty(0, np.float32))
    body = room[: made.length(room, size)].copy()
    coder.check(body, size)
    start = 4 * (5 + 4)
    assert body[start : start + 4].tolist() == [3, 3, 0, 0]
    for wrong in (body[:-1], np.append(body, np.uint8(0)), body[: start + 3], body[:3]):
        with pytest.raises(PayloadError, match="whole"):
            coder.check(wrong, size)
    for at, value, what in ((0, 2, "cannot hold"), (0, 8, "more than 7 bits"), (1, 255, "more than 7 bits"), (3, 1, "zeros")):
        wrong = body.copy()
        wrong[start + at] = value
        with pytest.raises(PayloadError, match=what):
            coder.check(wrong, size)
    wrong = body.copy()
    wrong[-1] |= 0x80
    with pytest.raises(PayloadError, match="bits follow"):
        coder.check(wrong, size)


def test_what_kernels_could_not_know_is_refused() -> None:
    def refused(make: Callable[[Value], Fields], *sent: str) -> str:
        class Bad:
            id, number, may_overflow = "bad", 250, False

            def to_fields(self, v: Value) -> Fields:
                return make(v)

            def from_fields(self, codes: Value) -> Value:
                decoded = f32(i32(codes))
                return decoded + f32(i32(random16())) if sent else decoded

        with pytest.raises(CodecSpecError) as caught:
            program_of(Bad())
        assert "\n" not in str(caught.value)
        return str(caught.value)

    def codes(v: Value) -> Value:
        return u32(i32(v))

    assert "go with codes that are fitted" in refused(lambda v: Fields(codes=planes(bits(v) & size_of_bucket(2), 4)))
    assert "as many rows" in refused(lambda v: Fields(codes=fitted(bits(v) & size_of_bucket(2), 3)))
    norm = refused(lambda v: Fields(codes=fitted(u32(i32(f32(l2_norm_of_bucket(v, 3)) * v)), 3)))
    assert "what is sent of it alone" in norm
    total = refused(lambda v: Fields(codes=fitted(codes(v * f32(sum_of_all(v * f32(l2_norm_of_bucket(v, 3))))), 3)))
    assert "numbers of buckets" in total
    assert "random bits" in refused(lambda v: Fields(codes=fitted(codes(v), 3)), "random bits")
    assert "input of encode" in refused(lambda v: Fields(codes=fitted(u32(i32(f32(l2_norm_of_bucket(v + 1, 3)) * v)), 3)))
    assert "1 to 16 bits" in refused(lambda v: Fields(codes=fitted(codes(v), 3, 17)))
    assert "1 to 128 rows" in refused(lambda v: Fields(codes=fitted(codes(v), 129)))
    assert "words 0 to 3" in refused(lambda v: Fields(codes=fitted(codes(v) + key_word(4), 3)))
    assert "a number of the row cannot go with fitted" in refused(
        lambda v: Fields(top=largest(v), codes=fitted(codes(v), 1)), "top"
    )
    assert "after 32, 64, 128 or 256" in refused(lambda v: Fields(codes=fitted(random16(100), 3)))


def tied(size: int) -> np.ndarray:
    """Return multiples of 2^-16 of a bucket's RMS that are ties under dithered's dither, except for a few."""
    k = dither(KEY.words, size)[0][:size].astype(float)
    fractions = (0xFFFF - k + 0.5) / 65536 - (np.arange(size) % 3 > 0)  # a, in units of the root mean square
    x = fractions.reshape(-1, 512)
    x[:, 511] = np.sqrt(np.maximum(512 - (x[:, :511] ** 2).sum(axis=1), 0))  # which makes the RMS 1
    return x.reshape(-1).astype(np.float32)


@pytest.mark.parametrize("make", MAKERS)
def test_dithers_that_leave_a_coordinate_open_are_settled(
    make: Callable[[Program], Functions], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, chance = [], interpreter._chance
    monkeypatch.setattr(interpreter, "_chance", lambda *arguments: asked.append(arguments) or chance(*arguments))
    codec, x = get_codec("dithered:bucket=512"), tied(2048)
    check(codec, make(program(codec)), x)
    assert make is not Interpreted or len(asked) > 3 * 0.95 * x.size  # a check encodes three times


@pytest.mark.sweep
@pytest.mark.parametrize("make", MAKERS)
def test_buckets_of_the_most_rows_with_codes_of_more_than_a_byte(make: Callable[[Program], Functions]) -> None:
    """Check buckets with one large value: 60000, less than 8192 steps, or 2000, which is 2262 steps. Codes are up to twice
    as large.

    The step is 1/32 of the RMS of the bucket, which such a value determines: 60000 is 256 times the RMS, and 2000 is 70.7
    times.
    """
    codec, x = get_codec("dithered:step=0.03125,bucket=65536"), gaussian(65536 + 5000)
    x[100] = 60000
    x[-1] = -2000
    check(codec, make(program(codec)), x)
    assert codec.encode(x, KEY).body[24 + 8 : 24 + 8 + 2].tolist() == [14, 13]


class Apart:
    """A formula with a number between its key words, and with random bits that decode uses."""

    id, number, may_overflow = "apart", 251, False

    def to_fields(self, v: Value) -> Fields:
        keys = [key_word(number) for number in range(4)]
        return Fields(k0=keys[0], k1=keys[1], one=u32(1), k2=keys[2], k3=keys[3], codes=planes(random16() & 15, 4))

    def from_fields(self, k0: Value, k1: Value, one: Value, k2: Value, k3: Value, codes: Value) -> Value:
        return f32(i32(codes)) - f32(i32(random16() & 15))


def test_key_words_that_are_apart_give_decode_no_random_bits() -> None:
    with pytest.raises(CodecSpecError, match="neither the input nor random bits"):
        program_of(Apart())
