"""Threshold: the values that reach tau are sent. Compared with a definition in NumPy and a reader in plain Python."""

from __future__ import annotations

import math

import numpy as np
import pytest

from psnode.codecs import Payload, get_codec
from psnode.codecs.threshold import Threshold
from psnode.errors import CodecSpecError, NonFiniteGradientError
from tests.codecs.index_oracle import log2_binomial, read_selection

LARGEST = float(np.finfo(np.float32).max)
TINY = float(np.finfo(np.float32).smallest_subnormal)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("spec", ["threshold", "threshold:tau=", "threshold:tau=0.5", "threshold:tau=1e-45"])
def test_a_codec_is_what_its_repr_says(spec):
    codec = get_codec(spec)
    assert get_codec(repr(codec)) == codec
    assert codec.contractive() is codec
    assert codec.sparse
    assert not codec.unbiased


@pytest.mark.parametrize("tau", ["0", "-1", "nan", "inf", "1e39", "1e-46", "much"])
def test_what_cannot_be_configured_is_refused(tau):
    with pytest.raises(CodecSpecError, match="tau"):
        get_codec(f"threshold:tau={tau}")


@pytest.mark.parametrize("shape", [(), (1,), (0,), (7,), (100, 37), (40_001,)])
@pytest.mark.parametrize("tau", [TINY, 0.01, 0.5, 1.0, 3.0, 100.0, LARGEST])
def test_entries_that_reach_tau_are_decoded_as_they_are(tau, shape):
    x = np.asarray(normal(*shape))
    codec = Threshold(tau=tau)
    payload = codec.encode(x, rng())
    assert payload.nbytes <= codec.max_nbytes(shape)
    y = codec.decode(Payload.from_bytes(payload.to_bytes()))
    assert np.array_equal(y, np.where(np.abs(x).astype(float) >= tau, x, np.float32(0)))
    if x.size:
        indices, values = read_selection(payload.to_bytes(), x.size)
        assert np.array_equal(indices, np.flatnonzero(np.abs(x).astype(float) >= tau))
        assert np.array_equal(values, x.reshape(-1)[indices])


@pytest.mark.parametrize("tau", [0.1, 1.0, 1 + 2**-24, 1 + 2**-23, 1.5e-45, 2.7e-45, LARGEST])
def test_the_comparison_is_exact_though_tau_is_no_float32(tau):
    near = np.float32(tau)
    around = [near, np.nextafter(near, np.float32(0)), np.nextafter(near, np.float32(LARGEST))]
    x = np.array([*around, *(-a for a in around)], np.float32)
    codec = Threshold(tau=tau)
    assert codec.support(codec.encode(x, rng())).tolist() == [i for i, value in enumerate(x) if abs(float(value)) >= tau]


def test_nothing_is_sent_where_nothing_reaches_tau():
    codec = Threshold(tau=10)
    payload = codec.encode(normal(1000), rng())
    assert codec.support(payload).size == 0
    assert payload.nbytes == 12 + 4 + 8


@pytest.mark.parametrize("scale", [1e-40, 1e-30, 1, 1e30])
def test_without_tau_what_exceeds_three_rms_is_sent_at_any_scale(scale):
    for x in (normal(50_000), rng(1).standard_t(3, 50_000), np.where(rng(2).random(50_000) < 0.38, normal(50_000), 0)):
        x = (x.astype(float) * scale).astype(np.float32)
        codec = get_codec("threshold")
        payload = codec.encode(x, rng())
        tau = 3 * math.sqrt(np.mean(x.astype(float) ** 2))
        support = codec.support(payload)
        # the RMS is summed in float32 by blocks: entries within 1e-5 of tau may be on either side
        assert set(np.flatnonzero(np.abs(x) >= tau * (1 + 1e-5))) <= set(support)
        assert set(support) <= set(np.flatnonzero(np.abs(x) >= tau * (1 - 1e-5)))
        assert payload.nbytes <= codec.max_nbytes(x.shape) < x.nbytes / 7


def test_without_tau_the_largest_alone_is_sent_where_nothing_stands_out():
    for x, index in ((np.ones(1000), 0), (-normal(5).clip(1, 2), None), (np.array([3.0]), 0), (np.full(9, -LARGEST), 0)):
        x = np.asarray(x, np.float32)
        codec = get_codec("threshold")
        support = codec.support(codec.encode(x, rng()))
        assert support.tolist() == [int(np.abs(x).argmax()) if index is None else index]
    assert codec.support(codec.encode(np.zeros(100, np.float32), rng())).size == 0


def test_a_payload_is_32_bits_a_value_and_log2_binomial_for_the_indices():
    x = normal(1 << 18)
    codec = Threshold(tau=2)
    payload = codec.encode(x, rng())
    count = codec.support(payload).size
    assert payload.nbytes <= 1.02 * (4 * count + log2_binomial(x.size, count) / 8) + 12 + 4 + 5 + 3


@pytest.mark.parametrize("spec", ["threshold", "threshold:tau=1"])
@pytest.mark.parametrize("index", [0, 4095, 29_999])
@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_a_value_that_is_not_finite_is_named(spec, index, value):
    x = normal(30_000)
    x[index] = value
    with pytest.raises(NonFiniteGradientError) as caught:
        get_codec(spec).encode(x, rng(), error=np.empty_like(x))
    assert caught.value.index == index


def test_no_residual_reaches_a_fixed_tau_and_nothing_is_lost():
    codec = Threshold(tau=2.5)
    generator, size = rng(), 2000
    residual, sent, total = np.zeros(size, np.float32), np.zeros(size), np.zeros(size)
    for _ in range(500):
        g = generator.standard_normal(size).astype(np.float32)
        residual += g
        total += g
        sent += codec.decode(codec.encode(residual, generator, error=residual))
        assert np.abs(residual).max() < 2.5
    assert np.abs(sent + residual - total).max() < 1e-3


def test_a_feedback_loop_without_tau_never_stalls():
    codec = get_codec("threshold")
    residual = np.zeros(50, np.float32)
    for _ in range(500):
        residual += 1
        payload = codec.encode(residual, rng(), error=residual)
        assert codec.support(payload).size >= 1
    assert residual.max() <= 50  # one entry per step, in turn


def test_the_error_in_place_keeps_what_was_not_sent():
    x = normal(30_000)
    x[::3] = -0.0
    for codec in (Threshold(tau=1), Threshold()):
        inside, apart = x.copy(), np.empty_like(x)
        payload = codec.encode(inside, rng(), error=inside)
        assert codec.encode(x, rng(), error=apart) == payload
        expected = x.copy()
        expected[codec.support(payload)] = 0
        for error in (inside, apart):
            assert np.array_equal(error.view(np.uint32), expected.view(np.uint32))
