"""QSGD compared with its formulas, and with an independent encoder in NumPy."""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from psnode.codecs import Payload, get_codec
from psnode.codecs.rng import Key
from psnode.errors import CodecSpecError, PayloadError
from tests.codecs.family import gaussian, recorded, student
from tests.codecs.golden_reader import unpack_planes
from tests.codecs.threefry_oracle import halves, stage_words

NUMBER = 5  # of qsgd in the payload format
TIES = NUMBER + 256
FORMS = [
    ("qsgd", 15, 512, "l2"),
    ("qsgd:levels=1", 1, 512, "l2"),
    ("qsgd:levels=2,bucket=7,norm=max", 2, 7, "max"),
    ("qsgd:levels=127,bucket=1000", 127, 1000, "l2"),
    ("qsgd:levels=128,bucket=64", 128, 64, "l2"),
    ("qsgd:levels=32767,bucket=100000,norm=max", 32767, 100000, "max"),
]


def parts_of(payload: Payload) -> tuple[int, int, np.ndarray, np.ndarray]:
    """Return levels, bucket, norms and codes, by the byte table."""
    data = payload.to_bytes()
    body = data[8 + 4 * data[2] :]
    levels, bucket = struct.unpack_from("<II", body)
    end = 8 + 4 * -(-payload.size // bucket)
    codes = unpack_planes(body[end:], payload.size, (2 * levels).bit_length())
    return levels, bucket, np.frombuffer(body[8:end], "<f4"), codes


def spread(norms: np.ndarray, bucket: int, size: int) -> np.ndarray:
    return np.repeat(norms, bucket)[:size]


def variance(x: np.ndarray, levels: int, bucket: int, norm: str) -> float:
    """Return the variance E||Q(x) - x||^2. A coordinate at a distance f above a level is rounded up with probability f,
    which gives a variance of f (1 - f) (norm / s)^2 for s levels.
    """
    total = 0.0
    for start in range(0, x.size, bucket):
        v = np.abs(x[start : start + bucket].astype(np.float64))
        length = np.linalg.norm(v) if norm == "l2" else v.max()
        a = v * levels / length if length else v
        total += float(np.sum((a % 1) * (1 - a % 1)) * (length / levels) ** 2)
    return total


@pytest.mark.parametrize(("spec", "levels", "bucket", "norm"), FORMS)
def test_bytes_equal_an_encoder_in_numpy(spec: str, levels: int, bucket: int, norm: str) -> None:
    """Compare the codes with NumPy, which adds random 16-bit numbers to fixed-point values; about six of 400 003 coordinates
    are ties.
    """
    x = student(400_003)
    key = Key.derive(5)
    stated_levels, stated_bucket, norms, codes = parts_of(get_codec(spec).encode(x, key))
    assert (stated_levels, stated_bucket) == (levels, bucket)
    n = spread(norms, bucket, x.size)
    factor = (levels * 65536.0 / n.astype(np.float64)).astype(np.float32)
    top = np.float32(levels * 65536)
    a = np.clip(x * factor, -top, top)
    total = np.floor(a).astype(np.int64) + halves(key.words, NUMBER, x.size).astype(np.int64) + (levels << 16)
    expected = total >> 16
    ties = np.flatnonzero(total % 65536 == 65535)
    assert ties.size
    for index in ties:
        fraction = int((float(a[index]) - np.floor(float(a[index]))) * 2.0**128)
        w = stage_words(key.words, TIES, int(index) + 1)[index]
        drawn = sum(int(word) << (96 - 32 * number) for number, word in enumerate(w))
        expected[index] += drawn < fraction
    np.testing.assert_array_equal(codes, expected)


@pytest.mark.parametrize(("spec", "levels", "bucket", "norm"), FORMS)
@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e-30, 1e30])
def test_norms_are_those_of_the_buckets(spec: str, levels: int, bucket: int, norm: str, scale: float) -> None:
    x = (student(3001) * scale).astype(np.float32)
    norms = parts_of(get_codec(spec).encode(x, Key.derive(1)))[2]
    buckets = [x[start : start + bucket].astype(np.float64) for start in range(0, x.size, bucket)]
    expected = [np.linalg.norm(v) if norm == "l2" else np.abs(v).max() for v in buckets]
    np.testing.assert_allclose(norms, expected, rtol=1e-6)


@pytest.mark.parametrize(("spec", "levels", "bucket", "norm"), FORMS)
@pytest.mark.parametrize("make", [gaussian, student, lambda n: recorded().reshape(-1)[:n]])
def test_variance_is_that_of_the_formula(spec: str, levels: int, bucket: int, norm: str, make: object) -> None:
    """Compare the formula with the mean squared error of 300 encodes (within 5 %), and for the L2 norm with the paper's
    bound.

    For buckets of B values and s levels, the bound is min(B / s^2, sqrt(B) / s) times the squared norm of the input.
    """
    x = make(5000)  # type: ignore[operator]
    codec = get_codec(spec)
    losses = [np.sum((codec.decode(codec.encode(x, Key.derive(r))) - x.astype(np.float64)) ** 2) for r in range(300)]
    expected = variance(x, levels, bucket, norm)
    assert np.mean(losses) == pytest.approx(expected, rel=0.05)
    if norm == "l2":
        size = min(bucket, x.size)
        assert expected <= min(size / levels**2, np.sqrt(size) / levels) * np.sum(x.astype(np.float64) ** 2)


@pytest.mark.parametrize("share", [1e-4, 1e-5])
def test_entries_far_below_the_smallest_level_are_not_lost(share: float) -> None:
    """Check that a million entries of 1e-4 or 1e-5 of the norm are rounded up as often as expected: with 16 random bits, 8 %
    or all hits would be lost.

    The sum over 200 encodes counts hits, a Poisson variable: within 5 standard errors; a share of 6e-7 of the seeds would
    fail.
    """
    n, repetitions = 1 << 20, 200
    x = np.full(n, share, np.float32)
    x[0] = 1
    codec = get_codec(f"qsgd:levels=1,bucket={n},norm=max")
    out, buffer = np.empty(n, np.float32), np.empty(codec.max_nbytes(x.shape), np.uint8)
    total = sum(int(codec.decode(codec.encode(x, Key.derive(r), out=buffer), out)[1:].sum()) for r in range(repetitions))
    expected = float(np.float32(share)) * (n - 1) * repetitions
    assert abs(total - expected) < 5 * np.sqrt(expected)


def test_rounding_is_independent_between_coordinates() -> None:
    """Check that the roundings of neighbours, of the two halves of a word, and of equal positions in two blocks are
    uncorrelated, within 5 standard errors.
    """
    n = 1 << 18
    x = np.full(n, 0.5, np.float32)
    x[::512] = 1
    codes = parts_of(get_codec("qsgd:levels=1,norm=max").encode(x, Key.derive(2)))[3]
    up = (2.0 * codes.reshape(-1, 512) - 3)[:, 1:]
    for left, right in ((up[:, :255], up[:, 256:]), (up[:, :-1], up[:, 1:]), (up[:-1], up[1:])):
        assert abs((left * right).mean()) < 5 / np.sqrt(left.size)


@pytest.mark.parametrize("spec", [form[0] for form in FORMS])
def test_zero_and_one_hot_and_full_scale_are_exact(spec: str) -> None:
    codec = get_codec(spec)
    for n in (1, 5, 512, 1500):
        zeros = np.zeros(n, np.float32)
        np.testing.assert_array_equal(codec.decode(codec.encode(zeros, Key.derive(1))), zeros)
        for value in (1.0, -3.7, 3.4e38, 1e-40):
            x = zeros.copy()
            x[n // 2] = value
            for seed in range(20):
                np.testing.assert_allclose(codec.decode(codec.encode(x, Key.derive(seed))), x, rtol=3e-7)


@pytest.mark.parametrize(("spec", "levels", "bucket", "norm"), FORMS)
@pytest.mark.parametrize("n", [1, 511, 512, 513, 100_000])
def test_bytes_are_exact_codes_and_one_norm_a_bucket(spec: str, levels: int, bucket: int, norm: str, n: int) -> None:
    payload = get_codec(spec).encode(gaussian(n), Key.derive(1))
    bits = int(np.ceil(np.log2(2 * levels + 1)))
    theory = n * bits / 8 + 4 * -(-n // bucket)
    assert 0 <= payload.nbytes - (8 + 4) - 8 - theory < 4


@given(
    x=arrays(np.float32, st.integers(1, 1300), elements=st.floats(width=32, allow_nan=False, allow_infinity=False)),
    levels=st.integers(1, 400),
    bucket=st.integers(1, 1400),
    norm=st.sampled_from(["l2", "max"]),
    seed=st.integers(0, 2**64 - 1),
)
def test_every_code_is_next_to_its_value(x: np.ndarray, levels: int, bucket: int, norm: str, seed: int) -> None:
    """Check for any values v that the code is the floor or ceiling of v s / norm for s levels, and that the decoded value
    has the sign of v.
    """
    codec = get_codec(f"qsgd:levels={levels},bucket={bucket},norm={norm}")
    payload = codec.encode(x, Key.derive(seed))
    norms, codes = parts_of(payload)[2:]
    n = spread(norms, bucket, x.size).astype(np.float64)
    a = np.divide(x.astype(np.float64) * levels, n, out=np.zeros(x.size), where=n > 0)
    signed = codes - levels
    slack = 1e-6 * levels
    assert (np.floor(a - slack) <= signed).all()
    assert (signed <= np.ceil(a + slack)).all()
    assert (np.abs(signed) <= levels).all()
    decoded = codec.decode(payload)
    assert np.isfinite(decoded).all()
    assert (decoded.astype(np.float64) * x >= 0).all()


FITTED = ["qsgd", "qsgd:norm=max,levels=3", "qsgd:bucket=1024", "qsgd:levels=300,bucket=1536", "qsgd:levels=1,bucket=65536"]


@pytest.mark.parametrize("spec", FITTED)
@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e-30, 1e30])
def test_factors_scale_every_bucket_to_its_least_squared_error(spec: str, scale: float) -> None:
    """Check that fitted buckets differ from unbiased ones only in their norms, by the factor <x, y> / <y, y> for the decoded
    y, computed by NumPy.
    """
    x = (student(5003) * scale).astype(np.float32)
    x[1536:2048] = 0
    plain = get_codec(spec)
    fitted = replace(plain, factors=True)
    payload, unbiased = fitted.encode(x, Key.derive(3)), plain.encode(x, Key.derive(3))
    _, bucket, norms, codes = parts_of(payload)
    np.testing.assert_array_equal(codes, parts_of(unbiased)[3])
    y = plain.decode(unbiased).astype(np.float64)
    for b, norm in enumerate(parts_of(unbiased)[2]):
        here = slice(b * bucket, (b + 1) * bucket)
        products, squares = np.dot(x[here], y[here]), np.dot(y[here], y[here])
        assert norms[b] == pytest.approx(norm * products / squares if squares else 0, rel=1e-5)
        left = np.linalg.norm(x[here] - fitted.decode(payload)[here].astype(np.float64))
        assert left <= np.linalg.norm(x[here].astype(np.float64)) * (1 + 1e-6)
    np.testing.assert_array_equal(plain.decode(payload), fitted.decode(payload))


@pytest.mark.parametrize("spec", FITTED)
def test_the_error_of_fitted_buckets_is_left_behind_to_the_bit(spec: str) -> None:
    """Check that the error equals x - decode(payload), written over x or elsewhere, for ordinary and extreme norms and for a
    bucket without a gradient.
    """
    codec, x = replace(get_codec(spec), factors=True), student(70_003)
    x[512:1024] = 0
    x[3000:5000] *= np.float32(1e-25)
    x[10_000] = 1e30
    apart, over = np.empty_like(x), x.copy()
    payload = codec.encode(x, Key.derive(1), error=apart)
    assert codec.encode(over, Key.derive(1), error=over) == payload
    np.testing.assert_array_equal(apart, x - codec.decode(payload))
    np.testing.assert_array_equal(over, apart)


def test_the_form_with_factors_is_biased_and_its_own_contractive_form() -> None:
    codec = get_codec("qsgd:factors=true")
    assert repr(codec) == "qsgd:levels=15,bucket=512,norm=l2,factors=true"
    assert not codec.unbiased
    assert codec.contractive() == codec
    assert repr(get_codec("qsgd:factors=false")) == "qsgd:levels=15,bucket=512,norm=l2"  # as recorded before `factors` existed


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("qsgd:bucket=700,factors=true", "multiple of 512, not 700"),
        ("qsgd:levels=0", r"levels=0 must be an integer in 1\.\.32767"),
        ("qsgd:levels=32768", "levels=32768"),
        ("qsgd:bucket=0", "bucket=0"),
        ("qsgd:levels=1.5", "is not an integer"),
        ("qsgd:norm=l1", "valid are l2, max"),
        ("qsgd:level=3", "did you mean levels"),
    ],
)
def test_parameters_are_bounded(spec: str, message: str) -> None:
    with pytest.raises(CodecSpecError, match=message):
        get_codec(spec)


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (0, 0, "levels=0"),
        (0, 40000, "levels=40000"),
        (4, 0, "bucket=0"),
        (4, 2**31, "bucket="),
        (4, 1, "lacks norms"),
        (8, 0x7F800000, "not finite"),
        (8, 0x80000001, "negative"),
        (0, 255, "cannot hold"),
    ],
)
def test_hostile_fields_are_named(at: int, value: int, message: str) -> None:
    codec = get_codec("qsgd")
    data = bytearray(codec.encode(gaussian(600), Key.derive(1)).to_bytes())
    data[12 + at : 16 + at] = value.to_bytes(4, "little")
    with pytest.raises(PayloadError, match=message):
        codec.decode(Payload.from_bytes(bytes(data)))


def test_codes_that_encode_does_not_write_count_as_the_largest() -> None:
    codec = get_codec("qsgd:levels=2,norm=max")
    x = np.linspace(-1, 1, 512, dtype=np.float32)
    data = bytearray(codec.encode(x, Key.derive(1)).to_bytes())
    data[12 + 12 :] = b"\xff" * (len(data) - 24)
    np.testing.assert_array_equal(codec.decode(Payload.from_bytes(bytes(data))), np.ones(512, np.float32))
