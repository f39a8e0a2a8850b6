"""The randomised terms compared with the exact spectrum, and the unbiased cover compared with theory."""

from __future__ import annotations

import math

import numpy as np
import pytest

from psnode.codecs import get_codec
from psnode.codecs.lowrank.randomised import OVERSAMPLING, sketch
from psnode.codecs.svd import Svd
from psnode.errors import CodecSpecError, NonFiniteGradientError


def key(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(2**64, size=2, dtype=np.uint64)


def of_spectrum(m: int, n: int, values: np.ndarray, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    u = np.linalg.qr(rng.standard_normal((m, len(values))))[0]
    v = np.linalg.qr(rng.standard_normal((n, len(values))))[0]
    return ((u * values) @ v.T).astype(np.float32)


def gaussian(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def dense(found, chosen=None):
    left, right = found.terms(np.arange(found.values.size) if chosen is None else chosen)
    return left.T @ right


@pytest.mark.parametrize("shape", [(60, 200), (200, 60), (100, 100)])
@pytest.mark.parametrize("scale", [1e-40, 1e-30, 1.0, 1e30])
def test_a_spectrum_that_falls_is_found(shape, scale):
    values = 10.0 ** -np.arange(20)
    x = (of_spectrum(*shape, values).astype(float) * scale).astype(np.float32)
    found = sketch(x, 3, key(1))
    exact = np.linalg.svd(x.astype(float), compute_uv=False)
    assert found.values[:3] == pytest.approx(exact[:3], rel=1e-3)
    left, right = found.terms([0, 1, 2])
    best = np.linalg.svd(x.astype(float), full_matrices=False)
    best = (best[0][:, :3] * best[1][:3]) @ best[2][:3]
    assert np.linalg.norm(left.T @ right - best) <= 1e-3 * np.linalg.norm(best)


@pytest.mark.parametrize("shape", [(60, 200), (200, 60)])
def test_terms_are_a_projection_of_the_matrix(shape):
    x = gaussian(*shape).astype(float)
    found = sketch(x.astype(np.float32), 4, key(2))
    assert found.values.size == 4 + OVERSAMPLING
    part = dense(found)
    # Q Q^T A is orthogonal to the rest, so that energies add up, and has the singular values that are stated
    assert np.sum(part * (x - part)) == pytest.approx(0, abs=1e-9 * np.sum(x * x))
    assert np.linalg.svd(part, compute_uv=False)[: found.values.size] == pytest.approx(found.values, rel=1e-9)


def test_white_noise_has_no_leading_subspace_but_most_of_the_largest_terms_is_found():
    x = gaussian(100, 400)
    exact = np.sum(np.linalg.svd(x, compute_uv=False)[:3] ** 2)
    for seed in range(5):
        assert np.sum(sketch(x, 3, key(seed)).values[:3] ** 2) >= 0.7 * exact


def test_a_matrix_of_lower_rank_is_found_whole():
    x = of_spectrum(50, 80, np.array([3.0, 2.0, 1.0]))
    found = sketch(x, 5, key(3))
    assert np.abs(dense(found) - x).max() <= 1e-6 * np.abs(x).max()


def test_a_short_side_within_the_subspace_is_decomposed_exactly():
    x = gaussian(3 + OVERSAMPLING, 200)
    found = sketch(x, 3, key(4), cover=True)
    assert found.values == pytest.approx(np.linalg.svd(x.astype(float), compute_uv=False), rel=1e-9)
    assert found.excess == 0


def test_the_key_alone_decides():
    x = gaussian(60, 90)
    assert np.array_equal(sketch(x, 3, key(5)).values, sketch(x, 3, key(5)).values)
    assert not np.array_equal(sketch(x, 3, key(5)).values, sketch(x, 3, key(6)).values)


@pytest.mark.parametrize("shape", [(60, 90), (90, 60)])
def test_zero_rows_and_columns_stay_exactly_zero(shape):
    x = gaussian(*shape)
    x[::3] = 0
    x[:, 1::2] = 0
    y = dense(sketch(x, 3, key(7), cover=True))
    assert not y[::3].any()
    assert not y[:, 1::2].any()
    assert sketch(np.zeros(shape, np.float32), 3, key(7)).values.size == 0


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_named(value):
    x = gaussian(60, 90)
    x[2, 5] = value
    with pytest.raises(NonFiniteGradientError) as caught:
        sketch(x, 3, key(8))
    assert caught.value.index == 185


def test_largest_float32_values_do_not_overflow():
    x = np.sign(gaussian(40, 60)) * np.finfo(np.float32).max
    found = sketch(x, 3, key(9))
    assert found.values[:3] == pytest.approx(np.linalg.svd(x.astype(float), compute_uv=False)[:3], rel=0.2)


# as a codec


def test_bare_it_is_the_contraction_and_covered_it_is_unbiased():
    codec = get_codec("svd:method=randomised")
    assert not codec.unbiased
    assert codec.contractive() is codec
    covered = get_codec("svd:method=randomised,cover=true")
    assert covered.unbiased
    assert covered.contractive() == codec
    for each in (codec, covered):
        assert get_codec(repr(each)) == each


@pytest.mark.parametrize(
    "spec",
    ["svd:method=randomised,sample=true", "svd:method=randomised,cover=true,sample=false", "svd:cover=true"],
)
def test_contradictions_are_refused(spec):
    with pytest.raises(CodecSpecError, match="svd"):
        get_codec(spec)


def test_the_cover_is_unbiased_and_its_omega_is_what_it_says():
    x = of_spectrum(24, 40, 0.5 ** np.arange(24))
    codec = Svd(rank=3, method="randomised", cover=True)
    rng = np.random.default_rng(10)
    u, _, vt = np.linalg.svd(x.astype(float), full_matrices=False)
    tests = np.array([np.sign(x), *(np.outer(u[:, i], vt[i]) for i in range(24))], dtype=float).reshape(-1, x.size)
    errors = np.array([(codec.decode(codec.encode(x, rng)).astype(float) - x).ravel() for _ in range(4000)])
    samples = errors @ tests.T
    deviation = samples.std(axis=0, ddof=1) / math.sqrt(len(samples))
    assert np.all(np.abs(samples.mean(axis=0)) <= 4 * deviation + 1e-6)
    measured = np.mean(np.sum(errors**2, axis=1)) / np.sum(x.astype(float) ** 2)
    told = np.mean([codec.omega(x, key(seed)) for seed in range(50)])
    assert measured == pytest.approx(told, rel=0.05)


def test_the_random_term_has_the_expectation_of_what_is_left_out():
    """Check that <x, all terms> has mean ||x||^2, within 4 standard errors; a wrong factor (D - 1) / D of the random term
    would be 6 standard errors away.
    """
    x = gaussian(40, 60)
    energy = np.sum(x.astype(float) ** 2)
    samples = np.array([np.sum(x * dense(sketch(x, 3, key(seed), cover=True))) / energy for seed in range(3000)])
    assert abs(samples.mean() - 1) <= 4 * samples.std(ddof=1) / math.sqrt(samples.size)
    # at least half of the energy is left out here, and 1/32 of it is many standard errors, so the test is sensitive
    assert 6 * samples.std(ddof=1) / math.sqrt(samples.size) <= 0.5 / 32


def test_the_cover_of_white_noise_has_the_variance_of_the_theory():
    x = gaussian(40, 60)
    codec = Svd(rank=3, method="randomised", cover=True)
    rng = np.random.default_rng(11)
    measured = np.mean([np.sum((codec.decode(codec.encode(x, rng)).astype(float) - x) ** 2) for _ in range(1500)])
    assert measured / np.sum(x.astype(float) ** 2) == pytest.approx(codec.omega(x), rel=0.05)


def test_omega_of_the_contraction_is_its_relative_error():
    x = gaussian(60, 200)
    codec = get_codec("svd:method=randomised")
    one = key(12)

    class Given:
        def integers(self, low, *, size, dtype):
            return one

    y = codec.decode(codec.encode(x, Given())).astype(float)
    assert np.sum((y - x) ** 2) / np.sum(x.astype(float) ** 2) == pytest.approx(codec.omega(x, one), rel=1e-5)


@pytest.mark.parametrize("rank", [1, 3])
def test_error_feedback_stays_bounded_and_loses_nothing(rank):
    shape = (40, 60)
    codec = Svd(rank=rank, method="randomised")
    rng = np.random.default_rng(0)
    residual, sent, total = np.zeros(shape, np.float32), np.zeros(shape), np.zeros(shape)
    largest = 0.0
    for _ in range(500):
        g = rng.standard_normal(shape).astype(np.float32)
        sent += codec.decode(codec.encode(g + residual, rng, error=residual))
        total += g
        largest = max(largest, float(np.linalg.norm(residual)))
    # With an exact spectrum of 40 equal singular values, each step sends `rank` / 40 of the energy. At least this is required.
    shrink = math.sqrt(1 - rank / 40)
    assert largest <= 1.2 * shrink / (1 - shrink) * math.sqrt(40 * 60)
    assert np.abs(sent + residual - total).max() < 1e-3
