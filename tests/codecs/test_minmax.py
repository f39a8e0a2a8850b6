"""minmax compared with its formulas, and with an independent encoder in NumPy."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from psnode.codecs import Payload, get_codec
from psnode.codecs.rng import Key
from psnode.errors import CodecSpecError, PayloadError
from tests.codecs.family import gaussian, recorded, student
from tests.codecs.low_bit_oracle import MINMAX, body_of, largest_factor, minmax_fields, rounded

WIDTHS = [1, 2, 4, 8]
INPUTS = {
    "gaussian": gaussian(5000),
    "shifted": gaussian(5000) + 100,
    "student": student(5000),
    "recorded": recorded().reshape(-1),
}


def decoded(x: np.ndarray, bits: int, key: int = 1) -> np.ndarray:
    codec = get_codec(f"minmax:bits={bits}")
    return codec.decode(codec.encode(x, Key.derive(key)))


@pytest.mark.sweep
@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("power", [0, -90, 90, 120])
def test_bytes_equal_an_encoder_in_numpy(bits: int, power: int) -> None:
    """Compare the codes with NumPy, which adds random 16-bit numbers to fixed-point values; about six of 400 003 coordinates
    are ties.
    """
    x, key = np.ldexp(gaussian(400_003), power).astype(np.float32), Key.derive(5)
    payload = get_codec(f"minmax:bits={bits}").encode(x, key)
    stated, low, high, codes = minmax_fields(body_of(payload.to_bytes()), x.size)
    assert (stated, low, high) == (bits, x.min(), x.max())
    span = float(high) - float(low)
    up = np.float32(2.0**64 if span < 2.0**-64 else 0.25 if span > 2.0**120 else 1)
    base = np.float32(low) * up
    factor = largest_factor(np.float32(high) * up - base, 2**bits - 1)
    expected, ties = rounded((x * up - base) * factor, key.words, MINMAX)
    assert ties
    np.testing.assert_array_equal(codes, expected)


@pytest.mark.sweep
@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("name", INPUTS)
def test_every_value_decodes_to_one_of_its_two_neighbours(name: str, bits: int) -> None:
    x = INPUTS[name].astype(np.float64)
    step = (x.max() - x.min()) / (2**bits - 1)
    y = decoded(INPUTS[name], bits)
    slack = 4e-7 * max(abs(x.max()), abs(x.min()))
    assert np.abs(y - x).max() < step + slack
    level = (y - x.min()) / step
    assert np.abs(level - np.round(level)).max() * step < slack
    assert y.min() == INPUTS[name].min()
    assert y[x.argmax()] == pytest.approx(x.max(), abs=slack)


@pytest.mark.sweep
@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("name", INPUTS)
def test_mean_and_variance_are_those_of_the_formula(name: str, bits: int) -> None:
    """Check over 500 encodes that the variance is the sum of f (1 - f) step^2 within 5 %, and that the mean over coordinates
    is right within 4.5 standard errors.

    f is the position of a value between two levels, from 0 to 1. A share of 7e-6 of the seeds would fail.
    """
    x = INPUTS[name].astype(np.float64)
    step = (x.max() - x.min()) / (2**bits - 1)
    f = (x - x.min()) / step % 1
    variance = np.sum(f * (1 - f)) * step**2
    errors = np.stack([decoded(INPUTS[name], bits, key) - x for key in range(500)])
    assert np.mean(np.sum(errors**2, axis=1)) == pytest.approx(variance, rel=0.05)
    assert abs(errors.sum(axis=1).mean()) < 4.5 * np.sqrt(variance / 500) + 2e-7 * np.abs(x).sum()


def test_entries_close_to_a_level_are_not_lost() -> None:
    """Check that a million entries at 1e-5 of the span are rounded up as often as expected, with one bit: with only 16
    random bits, a third of the hits would be lost.

    The sum over 100 encodes counts hits, a Poisson variable. It has to be within 5 standard errors of its mean, which fails
    for a share of 6e-7 of the seeds.
    """
    n, repetitions = 1 << 20, 100
    x = np.full(n, 1e-5, np.float32)
    x[:2] = 0, 1
    total = sum(int(decoded(x, 1, key)[2:].sum()) for key in range(repetitions))
    expected = float(np.float32(1e-5)) * (n - 2) * repetitions
    assert abs(total - expected) < 5 * np.sqrt(expected)


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("value", [0, -0.0, 0.1, -3e38, 1e-45])
def test_a_constant_array_is_exact(value: float, bits: int) -> None:
    x = np.full(1300, value, np.float32)
    np.testing.assert_array_equal(decoded(x, bits), x)


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize(
    "ends", [(-3.4e38, 3.4e38), (1e-45, 3e-45), (-1e-42, 1e-41), (1, np.nextafter(np.float32(1), np.float32(2)))]
)
def test_both_ends_of_any_range_are_met(ends: tuple[float, float], bits: int) -> None:
    x = np.resize(np.float32(ends), 4000)
    y = decoded(x, bits).astype(np.float64)
    span = float(x[1]) - float(x[0])
    assert (y[::2] == x[0]).all()
    assert np.abs(y[1::2] - float(x[1])).max() <= 1e-6 * span


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("size", [1, 7, 511, 512, 513, 2047, 2049, 10_003])
def test_so_many_bits_a_coordinate(bits: int, size: int) -> None:
    codec = get_codec(f"minmax:bits={bits}")
    payload = codec.encode(gaussian(size), Key.derive(0))
    assert payload.nbytes == 12 + 12 + -(-size * bits // 8) == codec.max_nbytes((size,))


def test_the_width_is_read_from_the_payload() -> None:
    payload = get_codec("minmax:bits=2").encode(gaussian(3000), Key.derive(0))
    np.testing.assert_array_equal(get_codec("minmax").decode(payload), get_codec("minmax:bits=2").decode(payload))


@pytest.mark.parametrize("bits", ["0", "3", "5", "16", "-4", "4.5", "true"])
def test_what_cannot_be_configured_is_refused(bits: str) -> None:
    with pytest.raises(CodecSpecError, match="bits"):
        get_codec(f"minmax:bits={bits}")


@pytest.mark.parametrize(
    "fields", [(4, 1, -1), (4, np.nan, 1), (4, -np.inf, 1), (4, -1, np.inf), (3, -1, 1), (0, -1, 1), (1 << 31, -1, 1)]
)
def test_fields_that_make_no_grid_are_refused(fields: tuple[int, float, float]) -> None:
    codec = get_codec("minmax")
    data = codec.encode(gaussian(300), Key.derive(0)).to_bytes()
    with pytest.raises(PayloadError, match="codes of"):
        codec.decode(Payload.from_bytes(data[:12] + struct.pack("<Iff", *fields) + data[24:]))


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_bits_behind_the_last_code_are_refused(bits: int) -> None:
    codec = get_codec(f"minmax:bits={bits}")
    data = codec.encode(gaussian(513), Key.derive(0)).to_bytes()
    with pytest.raises(PayloadError, match="last code"):
        codec.decode(Payload.from_bytes(data[:-1] + bytes([data[-1] | 0x80])))
