"""GradDrop: all values that reach a threshold are sent; the threshold's rank in the array is close to the requested one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from psnode.codecs import Payload, get_codec
from psnode.codecs.graddrop import Graddrop
from psnode.errors import CodecSpecError, NonFiniteGradientError
from tests.codecs.index_oracle import read_selection


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return rng(seed).standard_normal(shape).astype(np.float32)


def test_the_bare_name_drops_99_percent():
    codec = get_codec("graddrop")
    assert codec == Graddrop(ratio=0.01)
    assert get_codec(repr(codec)) == codec
    assert codec.contractive() is codec
    assert codec.sparse
    assert not codec.unbiased
    for wrong in ("ratio=0", "ratio=1.5", "rate=0.1"):
        with pytest.raises(CodecSpecError, match="rat"):
            get_codec(f"graddrop:{wrong}")


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", ["normal", "heavy tail", "zeros"])
def test_what_reaches_the_threshold_is_sent_and_nothing_else(kind, seed):
    size = 100_000
    x = normal(size) if kind == "normal" else rng(1).standard_t(2, size).astype(np.float32)
    if kind == "zeros":
        x *= rng(2).random(size) < 0.38
    codec = Graddrop(ratio=0.01)
    payload = codec.encode(x, rng(seed))
    indices, values = read_selection(payload.to_bytes(), size)
    assert np.array_equal(values, x[indices])
    assert np.abs(np.delete(x, indices)).max() < np.abs(values).min()
    assert np.array_equal(codec.support(payload), indices)
    assert payload.nbytes <= codec.max_nbytes(x.shape)
    # the threshold is the 41st of 4096 sampled values: the count varies by 1 / sqrt(41)
    assert abs(indices.size - 1000) <= 4 * 1000 / math.sqrt(41)


def test_the_expected_number_of_entries_is_the_share_asked_for():
    x = normal(50_000)
    codec = Graddrop(ratio=0.02)
    counts = [codec.support(codec.encode(x, rng(seed))).size for seed in range(200)]
    # the k-th of n sampled values has rank k (N + 1) / (n + 1) on average
    assert np.mean(counts) == pytest.approx(82 * 50_001 / 4097, abs=4 * np.std(counts) / math.sqrt(200))


@pytest.mark.parametrize("shape", [(), (1,), (7,), (64, 64), (4000,)])
def test_of_a_small_array_the_threshold_is_exact(shape):
    x = np.asarray(normal(*shape))
    for ratio in (0.01, 0.2, 1):
        codec = Graddrop(ratio=ratio)
        y = codec.decode(Payload.from_bytes(codec.encode(x, rng()).to_bytes()))
        limit = np.sort(np.abs(x), axis=None)[::-1][max(1, round(ratio * x.size)) - 1]
        assert np.array_equal(y, np.where(np.abs(x) >= limit, x, np.float32(0)))


def test_ties_and_misleading_samples_never_double_the_share():
    for x in (np.full(100_000, -2, np.float32), np.sign(normal(100_000))):
        codec = Graddrop(ratio=0.01)
        payload = codec.encode(x, rng())
        assert codec.support(payload).tolist() == list(range(2000))
        assert payload.nbytes <= codec.max_nbytes(x.shape)


def test_zeros_are_never_sent():
    x = np.zeros(100_000, np.float32)
    codec = Graddrop(ratio=0.01)
    assert codec.support(codec.encode(x, rng())).size == 0
    x[[5, 99_000]] = 1, -2
    assert codec.support(codec.encode(x, rng())).tolist() == [5, 99_000]


@pytest.mark.parametrize("index", [0, 4096, 99_999])
def test_a_value_that_is_not_finite_is_named(index):
    x = normal(100_000)
    x[index] = np.nan
    with pytest.raises(NonFiniteGradientError) as caught:
        get_codec("graddrop").encode(x, rng())
    assert caught.value.index == index


def test_error_feedback_stays_bounded_and_loses_nothing():
    codec = get_codec("graddrop:ratio=0.02")
    generator, size = rng(), 6000
    residual, sent, total = np.zeros(size, np.float32), np.zeros(size), np.zeros(size)
    norms = []
    for _ in range(500):
        g = generator.standard_normal(size).astype(np.float32)
        residual += g
        total += g
        sent += codec.decode(codec.encode(residual, generator, error=residual))
        norms.append(float(np.linalg.norm(residual)))
    assert max(norms) <= 3 * math.sqrt(50 * size)  # entries wait for about 50 steps
    assert max(norms[250:]) <= 1.2 * max(norms[:250])
    assert np.abs(sent + residual - total).max() < 1e-3


def test_a_ratio_of_one_drops_nothing():
    """Check that ratio 1 sends every value, including values smaller than the smallest in the sample."""
    x = normal(100_000)
    codec = Graddrop(ratio=1.0)
    assert np.array_equal(codec.decode(codec.encode(x, rng())), x)
