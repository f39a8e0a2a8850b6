"""Natural compression compared with its levels, its variance, and an independent reader."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from psnode.codecs import Payload, get_codec
from psnode.codecs.payload import header_nbytes
from psnode.codecs.rng import Key
from psnode.errors import PayloadError
from tests.codecs.family import VALUES, gaussian, recorded, student
from tests.codecs.golden_store import check_golden
from tests.codecs.powers_oracle import read

CODEC = get_codec("natural")
KEY = Key((5, 6))
LARGEST = float(np.finfo(np.float32).max)
INPUTS = {"gaussian": gaussian(1536), "student": student(1536), "recorded": recorded().reshape(-1)[:1536]}


def binade(x: np.ndarray) -> np.ndarray:
    """Return the power of two at or below |x|, float64; 0 for 0."""
    mantissa, exponent = np.frexp(np.abs(x.astype(np.float64)))
    return np.where(mantissa == 0, 0.0, np.ldexp(0.5, exponent))


@pytest.mark.parametrize("name", [*INPUTS, *(name for name in VALUES if name != "mixed scales")])
def test_every_value_becomes_one_of_the_powers_of_two_next_to_it(name: str) -> None:
    x = (INPUTS | VALUES)[name]
    low = binade(x)
    for number in range(20):
        decoded = CODEC.decode(CODEC.encode(x, Key.derive(number))).astype(np.float64)
        high = np.minimum(np.where(low == np.abs(x), low, 2 * low), LARGEST)
        assert np.all((np.abs(decoded) == low) | (np.abs(decoded) == high))
        assert np.all(np.sign(decoded) == np.sign(x))


@pytest.mark.parametrize("tiny", [2.0**-126, 2.0**-140])
def test_tiny_values_in_one_row_leave_the_others_alone(tiny: float) -> None:
    """Check that decoded values are next to x, in an array with more exponents than float32's normal range has but few
    exponents per row.
    """
    x = gaussian(3 * 512)
    x[7], x[512:1024] = 0, tiny * gaussian(512, seed=1)
    assert_next_to(x)


def test_values_that_the_largest_one_leaves_far_below_float32_are_not_zero() -> None:
    assert_next_to(np.array([2.0**40, 1.0, 0.0, 3 * 2.0**-149], np.float32))


def assert_next_to(x: np.ndarray) -> None:
    low = binade(x)
    decoded = np.abs(CODEC.decode(CODEC.encode(x, KEY)).astype(np.float64))
    assert np.all((decoded == low) | (decoded == 2 * low))


@pytest.mark.parametrize("name", INPUTS)
def test_mean_and_variance_are_those_of_an_unbiased_choice_and_omega_is_at_most_an_eighth(name: str) -> None:
    """Check over 1500 keys that the squared error is within 5 % of (2b - |x|)(|x| - b), where b is the power of two at or
    below |x|.

    The means of 8 classes by magnitude are within 4 standard errors of x; 2e-3 of seeds would fail.
    """
    x = INPUTS[name]
    low, magnitude = binade(x), np.abs(x.astype(np.float64))
    expected = (2 * low - magnitude) * (magnitude - low)
    errors = np.array([CODEC.decode(CODEC.encode(x, Key.derive(number, "var"))) for number in range(1500)], np.float64) - x
    assert np.mean(np.sum(errors**2, axis=1)) == pytest.approx(expected.sum(), rel=0.05)
    assert expected.sum() <= np.sum(magnitude**2) / 8
    for part in np.array_split(np.argsort(magnitude, kind="stable"), 8):
        sums = (errors[:, part] * np.where(x[part] < 0, -1, 1)).sum(axis=1)
        assert abs(sums.mean()) <= 4 * np.sqrt(expected[part].sum() / 1500) + 1e-6 * magnitude[part].sum()


def test_the_worst_value_has_an_omega_of_an_eighth() -> None:
    """Check 4/3 of a power of two, the worst value: its variance is (2 - 4/3)(4/3 - 1) = 2/9 = (4/3)^2 / 8."""
    x = np.full(1 << 16, np.float32(4 / 3))
    error = CODEC.decode(CODEC.encode(x, KEY)).astype(np.float64) - x
    assert np.sum(error**2) / np.sum(x.astype(np.float64) ** 2) == pytest.approx(1 / 8, rel=0.02)


@pytest.mark.parametrize("scale", [2.0**-140, 1.0, 2.0**120])
def test_the_law_is_the_same_at_every_scale_of_float32(scale: float) -> None:
    """Check that scale * (1 + fraction) is rounded up with probability `fraction`, at scales from 2^-140 to 2^120, within 4
    standard errors each.
    """
    for fraction in (0.25, 0.5, 0.875):
        x = np.full(1 << 16, np.float32(scale * (1 + fraction)))
        share = np.mean(CODEC.decode(CODEC.encode(x, KEY)) == np.float32(2 * scale))
        assert abs(share - fraction) <= 4 * np.sqrt(fraction * (1 - fraction) / x.size)


def test_entries_of_a_ten_thousandth_are_kept_on_average() -> None:
    x = np.full(1 << 20, np.float32(1e-4))
    x[0] = 1.0
    mean = CODEC.decode(CODEC.encode(x, KEY))[1:].mean(dtype=np.float64)
    assert abs(mean - 1e-4) <= 4 * 1e-4 * np.sqrt(1 / 8 / x.size)


def test_beyond_255_exponents_the_smallest_values_are_rounded_to_the_last_one_or_to_zero() -> None:
    x = np.full(40_000, np.float32(2.0**-131))
    x[0] = np.float32(2.0**126)
    decoded = CODEC.decode(CODEC.encode(x, KEY))
    assert set(np.unique(decoded).tolist()) == {0.0, 2.0**-128, 2.0**126}
    share = np.mean(decoded[1:] != 0)
    assert abs(share - 2.0**-3) <= 4 * np.sqrt(2.0**-3 / x.size)


def test_values_above_the_largest_power_go_to_the_largest_float() -> None:
    x = np.full(20_000, np.float32(3e38))
    decoded = CODEC.decode(CODEC.encode(x, KEY)).astype(np.float64)
    assert set(np.unique(decoded).tolist()) == {2.0**127, LARGEST}
    assert decoded.mean() == pytest.approx(3e38, rel=0.01)


@pytest.mark.parametrize(
    ("x", "bits"),
    [
        (np.zeros(5120, np.float32), 0),
        (np.full(5120, np.float32(-4.0)), 2),
        (np.full(5120, np.float32(5.0)), 3),
        (gaussian(5120), 5),
        (np.resize(np.float32([2.0**127, 2.0**-149, 1.0]), 5120), 9),
    ],
)
def test_the_exponents_that_occur_decide_the_bits(x: np.ndarray, bits: int) -> None:
    assert CODEC.encode(x, KEY).nbytes == header_nbytes(1) + 4 + 5120 * bits // 8


@pytest.mark.parametrize("spec", ["natural", "natural+ans"])
def test_an_independent_reader_agrees(spec: str) -> None:
    codec = get_codec(spec)
    for x in (gaussian(5000), recorded(), gaussian(3), *VALUES.values()):
        payload = codec.encode(x, KEY)
        np.testing.assert_array_equal(codec.decode(payload).reshape(-1), read(payload.to_bytes()))


@pytest.mark.parametrize("spec", ["natural", "natural+ans"])
def test_golden_bytes(spec: str) -> None:
    check_golden(spec.replace("+", "-"), spec, read)


@pytest.mark.parametrize(("top", "exponents"), [(129, 1), (-150, 1), (0, 256), (-149, 2), (1, 0), (-32768, 5)])
def test_exponents_that_float32_has_not_are_refused(top: int, exponents: int) -> None:
    data = bytearray(CODEC.encode(gaussian(512), KEY).to_bytes())
    struct.pack_into("<hH", data, header_nbytes(1), top, exponents)
    with pytest.raises(PayloadError, match="exponents"):
        CODEC.decode(Payload.from_bytes(bytes(data)))


@pytest.mark.parametrize("top", [105, 50, 0, -40, -120])
def test_powers_of_two_down_to_the_smallest_that_float32_has_come_back(top: int) -> None:
    """Check that 2^top to 2^-149, coded in one block, are decoded exactly: at most 255 exponents, the lowest of which
    float32 cannot divide exactly.
    """
    x = np.ldexp(1.0, np.arange(-149, top + 1)).astype(np.float32)
    for number in range(5):
        np.testing.assert_array_equal(CODEC.decode(CODEC.encode(x, Key.derive(number))), x)
