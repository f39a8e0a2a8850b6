"""terngrad compared with its formulas, and with an independent encoder in NumPy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from psnode.codecs import Payload, get_codec
from psnode.codecs.kernels.trits import pack, unpack
from psnode.codecs.rng import Key
from psnode.errors import CodecSpecError, PayloadError
from tests.codecs.family import gaussian, recorded, student
from tests.codecs.low_bit_oracle import TERNGRAD, body_of, digits_of, largest_factor, rounded

INPUTS = {"gaussian": gaussian(5000), "student": student(5000), "recorded": recorded().reshape(-1)}


def parts_of(payload: Payload) -> tuple[np.float32, np.ndarray]:
    """Return the scale and the ternary digits of a payload, in the layout of docs/payload-format.md."""
    body = body_of(payload.to_bytes())
    return np.frombuffer(body[:4], "<f4")[0], digits_of(body[4:], payload.size, 2560)


@pytest.mark.parametrize("clip", [0, 2.5])
@pytest.mark.parametrize("power", [0, -90, 90])
def test_bytes_equal_an_encoder_in_numpy(clip: float, power: int) -> None:
    """Compare the digits with NumPy, which adds random 16-bit numbers to fixed-point values; about six of 400 003
    coordinates are ties.
    """
    x, key = np.ldexp(student(400_003), power).astype(np.float32), Key.derive(5)
    payload = get_codec(f"terngrad:clip={clip}").encode(x, key)
    scale, digits = parts_of(payload)
    up = np.float32(2.0**64 if scale < 2.0**-64 else 1)
    codes, ties = rounded(np.clip(x, -scale, scale) * up * largest_factor(scale * up, 1), key.words, TERNGRAD)
    assert ties
    np.testing.assert_array_equal(digits, codes + 1)


@pytest.mark.parametrize("name", INPUTS)
def test_the_scale_is_the_largest_magnitude(name: str) -> None:
    x = INPUTS[name]
    scale, digits = parts_of(get_codec("terngrad").encode(x, Key.derive(1)))
    assert scale == np.abs(x).max()
    assert digits[np.abs(x).argmax()] == (2 if x[np.abs(x).argmax()] > 0 else 0)


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("clip", [0.5, 2.5, 1000])
def test_clipping_is_at_so_many_standard_deviations_but_not_above_the_maximum(name: str, clip: float) -> None:
    x = INPUTS[name].astype(np.float64)
    scale, _ = parts_of(get_codec(f"terngrad:clip={clip}").encode(INPUTS[name], Key.derive(1)))
    assert scale == pytest.approx(min(clip * np.sqrt(np.mean(x**2)), np.abs(x).max()), rel=1e-6)


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("clip", [0, 2.5])
def test_mean_and_variance_are_those_of_the_formula(name: str, clip: float) -> None:
    """Check 1000 encodes with scale s: the signed sum over the coordinates is right within 4 standard errors, and the
    variance is s |c|_1 - |c|^2 within 5 %, for the clipped values c.

    A share of 6e-5 of the seeds would fail.
    """
    x = INPUTS[name]
    codec = get_codec(f"terngrad:clip={clip}")
    s = float(parts_of(codec.encode(x, Key.derive(0)))[0])
    clipped = np.clip(x.astype(np.float64), -s, s)
    variance = s * np.abs(clipped).sum() - np.sum(clipped**2)
    sums, losses = np.empty(1000), np.empty(1000)
    for r in range(1000):
        y = codec.decode(codec.encode(x, Key.derive(r))).astype(np.float64)
        sums[r], losses[r] = np.dot(np.sign(x), y), np.sum((y - clipped) ** 2)
    assert losses.mean() == pytest.approx(variance, rel=0.05)
    assert abs(sums.mean() - np.abs(clipped).sum()) < 4 * np.sqrt(variance / 1000)


def test_omega_of_a_gaussian_is_near_three() -> None:
    """Check that omega = s |x|_1 / |x|^2 - 1 is between 2 and 3.5, where s is the largest of 5000 magnitudes."""
    x = INPUTS["gaussian"].astype(np.float64)
    assert 2 < np.abs(x).max() * np.abs(x).sum() / np.sum(x**2) - 1 < 3.5
    assert get_codec("terngrad").unbiased
    assert not get_codec("terngrad:clip=2.5").unbiased


@pytest.mark.parametrize("share", [1e-4, 1e-5])
def test_entries_far_below_the_scale_are_not_lost(share: float) -> None:
    """Check that a million entries of 1e-4 or 1e-5 of the maximum are kept as often as expected: with 16 random bits, 8 % or
    a third of the hits would be lost.

    The sum over 200 encodes counts hits, a Poisson variable: within 5 standard errors; a share of 6e-7 of the seeds would
    fail.
    """
    n, repetitions = 1 << 20, 200
    x = np.full(n, share, np.float32)
    x[0] = 1
    codec = get_codec("terngrad")
    out, buffer = np.empty(n, np.float32), np.empty(codec.max_nbytes(x.shape), np.uint8)
    total = sum(int(codec.decode(codec.encode(x, Key.derive(r), out=buffer), out)[1:].sum()) for r in range(repetitions))
    expected = float(np.float32(share)) * (n - 1) * repetitions
    assert abs(total - expected) < 5 * np.sqrt(expected)


def test_exact_zeros_stay_zero_and_full_scale_is_always_kept() -> None:
    """Check that 600 000 zeros and 600 000 largest values are decoded exactly: ties in the random bits, one in 65 536, must
    not change them.
    """
    x = np.zeros(1_200_000, np.float32)
    x[::2] = np.where(np.arange(600_000) % 4 == 1, np.float32(-0.7), np.float32(0.7))
    x[1::4] = -0.0
    codec = get_codec("terngrad")
    for key in range(3):
        np.testing.assert_array_equal(codec.decode(codec.encode(x, Key.derive(key))), x)


@pytest.mark.parametrize("size", [1, 4, 5, 6, 512, 2559, 2560, 2561, 10_003])
def test_1_6_bits_a_coordinate(size: int) -> None:
    codec = get_codec("terngrad")
    assert codec.encode(gaussian(size), Key.derive(0)).nbytes == 12 + 4 + -(-size // 5) == codec.max_nbytes((size,))


def test_the_contractive_form_is_the_multiple_of_least_error_clipped_or_not() -> None:
    x = student(20_000)
    for spec in ("terngrad", "terngrad:clip=2.5"):
        codec, form = get_codec(spec), get_codec(spec).contractive()
        y = codec.decode(codec.encode(x, Key.derive(3))).astype(np.float64)
        best = np.dot(x, y) / np.dot(y, y)
        np.testing.assert_allclose(form.decode(form.encode(x, Key.derive(3))), best * y, rtol=1e-6)


@pytest.mark.parametrize("scale", [1e-42, 1e-36, 1e36])
def test_the_contractive_form_is_right_at_any_scale(scale: float) -> None:
    x = (gaussian(20_000).astype(np.float64) * scale).astype(np.float32)
    codec, form = get_codec("terngrad"), get_codec("terngrad").contractive()
    y = codec.decode(codec.encode(x, Key.derive(3))).astype(np.float64) / scale
    best = np.dot(x / scale, y) / np.dot(y, y)
    decoded = form.decode(form.encode(x, Key.derive(3))) / scale
    np.testing.assert_allclose(decoded, best * y, rtol=1e-5, atol=1e-44 / scale)


@pytest.mark.parametrize("clip", [0, 2.5])
def test_in_a_chain_too_the_contractive_form_is_scaled(clip: float) -> None:
    spec = f"terngrad:clip={clip}+zstd"
    assert get_codec(spec).contractive().stages == ("contractive", "terngrad", "zstd")


def test_five_digits_make_a_byte_and_a_byte_five_digits() -> None:
    """Check packing and unpacking for all 243 bytes; digit k of a byte counts 3^k."""
    every = np.array(list(itertools.product(range(3), repeat=5)), np.uint8).T
    packed, digits = np.empty(243, np.uint8), np.empty(5 * 243, np.uint8)
    flat = np.ascontiguousarray(every).reshape(-1)
    pack(flat, packed)
    np.testing.assert_array_equal(packed, 3 ** np.arange(5) @ every)
    unpack(packed, digits)
    np.testing.assert_array_equal(digits, flat)


@pytest.mark.parametrize("size", [3, 2561, 2564, 5000])
def test_bytes_above_242_and_digits_behind_the_last_are_refused(size: int) -> None:
    codec = get_codec("terngrad")
    data = codec.encode(gaussian(size), Key.derive(0)).to_bytes()
    for place in (16, len(data) - 1):
        for value in (243, 255):
            with pytest.raises(PayloadError, match="digits"):
                codec.decode(Payload.from_bytes(data[:place] + bytes([value]) + data[place + 1 :]))
    if size % 5:
        top = 81 if size > 3 else 27
        with pytest.raises(PayloadError, match="digits"):
            codec.decode(Payload.from_bytes(data[:-1] + bytes([data[-1] % top + top])))


@pytest.mark.parametrize("scale", [np.nan, np.inf, -1.0])
def test_a_scale_that_is_no_magnitude_is_refused(scale: float) -> None:
    codec = get_codec("terngrad")
    data = codec.encode(gaussian(300), Key.derive(0)).to_bytes()
    with pytest.raises(PayloadError, match="scale"):
        codec.decode(Payload.from_bytes(data[:12] + np.float32(scale).tobytes() + data[16:]))


@pytest.mark.parametrize("clip", ["-1", "1001", "nan", "inf", "two"])
def test_what_cannot_be_configured_is_refused(clip: str) -> None:
    with pytest.raises(CodecSpecError, match="clip"):
        get_codec(f"terngrad:clip={clip}")
