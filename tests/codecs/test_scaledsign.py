"""scaledsign compared with mean magnitudes and the identities in its paper."""

from __future__ import annotations

import math

import numpy as np
import pytest

from psnode.codecs import Payload, get_codec
from psnode.codecs.rng import Key
from psnode.errors import CodecSpecError, PayloadError
from tests.codecs.family import fed_back, gaussian, recorded, student
from tests.codecs.low_bit_oracle import SCALEDSIGN, body_of, coins

INPUTS = {"gaussian": gaussian(30_001), "student": student(30_001), "recorded": recorded().reshape(-1)}
BUCKETS = [0, 1, 3, 64, 100, 512, 1000, 8192, 10_000, 1_000_000]


def decoded(x: np.ndarray, bucket: int = 0, key: int = 1) -> np.ndarray:
    codec = get_codec(f"scaledsign:bucket={bucket}")
    return codec.decode(codec.encode(x, Key.derive(key)))


def means(x: np.ndarray, bucket: int) -> np.ndarray:
    """Return the mean magnitude of every coordinate's bucket, float64."""
    bucket = bucket or x.size
    starts = range(0, x.size, bucket)
    return np.concatenate([np.full(v.size, np.abs(v.astype(np.float64)).mean()) for v in (x[s : s + bucket] for s in starts)])


@pytest.mark.parametrize("bucket", BUCKETS)
@pytest.mark.parametrize("name", INPUTS)
def test_magnitudes_are_the_means_of_the_buckets_and_signs_those_of_the_coordinates(name: str, bucket: int) -> None:
    x, key = INPUTS[name], Key.derive(1)
    y = decoded(x, bucket)
    np.testing.assert_allclose(np.abs(y), means(x, bucket), rtol=1e-6)
    negative = np.where(x == 0, coins(key.words, SCALEDSIGN, x.size), np.signbit(x))
    np.testing.assert_array_equal(np.signbit(y), negative)


@pytest.mark.parametrize("bucket", [0, 100, 4096])
@pytest.mark.parametrize("name", INPUTS)
def test_the_squared_error_is_that_of_the_identity(name: str, bucket: int) -> None:
    """Check ||v - w||^2 = ||v||^2 - ||v||_1^2 / B in every bucket v of B values, decoded to w, with and without zeros."""
    x = INPUTS[name].astype(np.float64)
    size = bucket or x.size
    parts = [x[start : start + size] for start in range(0, x.size, size)]
    expected = sum(np.sum(v**2) - np.abs(v).sum() ** 2 / v.size for v in parts)
    assert np.sum((x - decoded(INPUTS[name], bucket)) ** 2) == pytest.approx(expected, rel=1e-5)


def test_a_gaussian_shrinks_to_one_minus_two_over_pi() -> None:
    """Check that a million coordinates leave the share alpha = 1 - (E|x|)^2 = .3634 of their energy, within 1 %, which is 10
    standard errors.
    """
    x = gaussian(1_000_000)
    assert np.mean((x.astype(np.float64) - decoded(x)) ** 2) / np.mean(x.astype(np.float64) ** 2) == pytest.approx(
        1 - 2 / math.pi, rel=0.01
    )


@pytest.mark.parametrize("scale", [1e-44, 1e-38, 1e-30, 1e30, 1e37])
@pytest.mark.parametrize("bucket", [0, 100])
def test_magnitudes_are_right_at_any_scale(scale: float, bucket: int) -> None:
    x = np.clip(student(30_001).astype(np.float64) * scale, -3.4e38, 3.4e38).astype(np.float32)
    np.testing.assert_allclose(np.abs(decoded(x, bucket)), means(x, bucket), rtol=1e-6, atol=1e-45)


def test_full_scale_does_not_overflow() -> None:
    largest = np.finfo(np.float32).max
    x = largest * np.sign(gaussian(30_001))
    np.testing.assert_allclose(np.abs(decoded(x)), largest, rtol=1e-6)
    np.testing.assert_array_equal(decoded(x, 1), x)


def test_tiny_coordinates_keep_their_sign_beside_full_scale_ones() -> None:
    """Check that -1e-45 keeps its sign beside 3e38: the sums overflow and are repeated at a scale where 1e-45 is 0."""
    x = np.where(np.arange(5000) % 2, np.float32(3e38), np.float32(-1e-45)).astype(np.float32)
    np.testing.assert_array_equal(np.sign(decoded(x)), np.sign(x))


@pytest.mark.parametrize(("bucket", "bytes_of_scales"), [(0, 4), (512, 4 * 59), (100, 4 * 301), (1, 4 * 30_001)])
def test_one_bit_a_coordinate_and_32_a_bucket(bucket: int, bytes_of_scales: int) -> None:
    codec = get_codec(f"scaledsign:bucket={bucket}")
    payload = codec.encode(gaussian(30_001), Key.derive(0))
    assert payload.nbytes == 12 + 4 + bytes_of_scales + 3751 == codec.max_nbytes((30_001,))


@pytest.mark.parametrize("bucket", [0, 100])
def test_an_array_of_zeros_decodes_to_zeros(bucket: int) -> None:
    assert not decoded(np.zeros(700, np.float32), bucket).any()
    x = gaussian(700)
    x[100:200] = 0
    assert not decoded(x, 100)[100:200].any()


def test_feedback_returns_what_dead_coordinates_were_given() -> None:
    """Check 300 steps of a gradient that is mostly 0: where it is 0, the sums of decoded values stay within one magnitude of
    0, and average to 0.
    """
    gradient = recorded().reshape(-1)
    codec, residual, total = get_codec("scaledsign"), np.zeros(gradient.size, np.float32), np.zeros(gradient.size)
    most = 0.0
    for step in range(300):
        payload = fed_back(codec, gradient, Key.derive(2, step), residual)
        sent = codec.decode(payload)
        most = max(most, float(np.abs(sent[0])))
        total += sent
        assert np.abs(total[gradient == 0]).max() <= 1.001 * most
    np.testing.assert_allclose(total + residual, 300.0 * gradient, atol=1e-4 * np.abs(gradient).max() * 300)
    assert abs(total[gradient == 0].mean()) < 0.1 * most


@pytest.mark.parametrize(
    "spec", ["scaledsign:bucket=-1", "scaledsign:bucket=268435457", "scaledsign:bucket=1.5", "scaledsign:b=1"]
)
def test_what_cannot_be_configured_is_refused(spec: str) -> None:
    with pytest.raises(CodecSpecError, match="scaledsign"):
        get_codec(spec)


def test_another_bucket_is_read_from_the_payload() -> None:
    payload = get_codec("scaledsign:bucket=100").encode(gaussian(3000), Key.derive(0))
    np.testing.assert_array_equal(get_codec("scaledsign").decode(payload), get_codec("scaledsign:bucket=100").decode(payload))


@pytest.mark.parametrize("scale", [np.nan, np.inf, -1.0, -0.0])
def test_a_scale_that_is_no_mean_magnitude_is_refused(scale: float) -> None:
    codec = get_codec("scaledsign")
    data = bytearray(codec.encode(gaussian(300), Key.derive(0)).to_bytes())
    assert len(body_of(bytes(data))) == 8 + 38
    data[16:20] = np.float32(scale).tobytes()
    with pytest.raises(PayloadError, match="magnitude"):
        codec.decode(Payload.from_bytes(bytes(data)))
