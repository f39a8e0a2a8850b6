"""Bounds and R(D) compared with closed forms."""

from __future__ import annotations

import numpy as np
import pytest

from psnode.bench.yardsticks.rate_distortion import RateDistortion, curve, histogram, least_bits, shrunk

SIZE = 1 << 18


@pytest.fixture(scope="module")
def gaussian() -> RateDistortion:
    return curve(np.random.default_rng(0).standard_normal(SIZE).astype(np.float32))


@pytest.mark.parametrize("error", [0.9, 0.5, 0.25, 1 / 16, 1 / 64, 1 / 256, 1e-3])
def test_a_gaussian_source_needs_half_the_logarithm_of_one_over_its_error(gaussian: RateDistortion, error: float) -> None:
    assert gaussian.bits_at(error) == pytest.approx(-0.5 * np.log2(error), abs=0.02)


@pytest.mark.parametrize("error", [1 / 64, 1 / 256, 1e-3])
def test_at_small_errors_a_laplacian_source_meets_shannons_lower_bound(error: float) -> None:
    """Compare R(D) of a Laplacian source of variance 1, at small errors D, with Shannon's lower bound h - log2(2 pi e D) /
    2. Here h = log2(2 e b) and b = sqrt(1/2).
    """
    found = curve(np.random.default_rng(0).laplace(size=SIZE).astype(np.float32)).bits_at(error)
    entropy = np.log2(2 * np.e * np.sqrt(0.5))
    assert found == pytest.approx(entropy - 0.5 * np.log2(2 * np.pi * np.e * error), abs=0.02)


def test_two_equal_points_need_one_bit_at_no_error_and_none_at_all_error() -> None:
    found = curve(np.resize(np.float32([-1, 1]), SIZE))
    assert found.bits[-1] == pytest.approx(1, abs=1e-3)
    assert found.bits_at(1.0) == 0


def test_the_curve_falls_and_is_convex(gaussian: RateDistortion) -> None:
    slopes = np.diff(gaussian.errors) / np.diff(gaussian.bits)
    assert (slopes < 0).all()
    assert (np.diff(slopes[np.diff(gaussian.bits) > 0.01]) >= -1e-3).all()


def test_scale_and_order_do_not_matter(gaussian: RateDistortion) -> None:
    x = np.random.default_rng(0).standard_normal(SIZE).astype(np.float32)
    other = curve(np.float32(1e-12) * np.sort(x))
    np.testing.assert_allclose([other.bits_at(e) for e in (0.5, 0.1)], [gaussian.bits_at(e) for e in (0.5, 0.1)], atol=1e-3)


def test_a_source_that_is_mostly_zero_needs_less() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(SIZE) * (rng.random(SIZE) < 0.1)
    found = curve(x.astype(np.float32))
    for error in (0.5, 0.1, 0.01):
        assert 0 < found.bits_at(error) < -0.5 * np.log2(error) / 2


def test_cells_keep_mass_mean_energy_and_the_share_of_zeros() -> None:
    x = np.random.default_rng(0).standard_t(3, SIZE).astype(np.float32)
    x[: SIZE // 4] = 0
    points, shares = histogram(x)
    assert shares.sum() == pytest.approx(1)
    assert shares[points == 0].sum() == pytest.approx(0.25, abs=1e-9)
    wide = x.astype(np.float64)
    assert shares @ points == pytest.approx(wide.mean() / np.sqrt(np.mean(wide**2)), abs=1e-6)
    assert shares @ points**2 == pytest.approx(1, abs=2e-3)


@pytest.mark.parametrize(
    ("bits", "alpha", "omega"), [(0.5, 0.5, 1.0), (1, 0.25, 1 / 3), (2, 1 / 16, 1 / 15), (4, 1 / 256, 1 / 255)]
)
def test_the_bounds_are_those_of_the_papers(bits: float, alpha: float, omega: float) -> None:
    assert least_bits(alpha, unbiased=False) == pytest.approx(bits)
    assert least_bits(omega, unbiased=True) == pytest.approx(bits)
    assert shrunk(omega, unbiased=True) == pytest.approx(alpha)
    assert least_bits(1.5, unbiased=False) == 0
