"""Probabilities compared with an independent solver and the optimality conditions. Sampling is checked exactly, for all
starting points.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from psnode.codecs.lowrank.atoms import MAX_BUDGET, TICKS, optimal_probabilities, sampling_error, systematic_sample, ticks
from psnode.errors import CodecValueError


def by_bisection(magnitudes: np.ndarray, budget: float) -> np.ndarray:
    """Return the probabilities min(1, c lambda) of magnitudes lambda. 200 bisections find the c at which they sum to
    `budget`, without sorting or tail sums.
    """
    if np.count_nonzero(magnitudes) <= budget:
        return (magnitudes > 0).astype(float)
    lam = magnitudes / magnitudes.max()
    low, high = 0.0, 1.0 / lam[lam > 0].min()
    for _ in range(200):
        middle = (low + high) / 2
        if math.fsum(np.minimum(1.0, middle * lam)) < budget:
            low = middle
        else:
            high = middle
    return np.minimum(1.0, high * lam)


def inclusion(shares: np.ndarray) -> tuple[np.ndarray, set[int]]:
    """Return the measure, in ticks, of the starting points that take each atom, and the sizes of the samples. Both are
    exact, since all cells of starting points are visited.
    """
    cuts = sorted({0, TICKS, *(int(edge) % TICKS for edge in itertools.accumulate(map(int, shares)))})
    measure, sizes = np.zeros(len(shares), dtype=np.int64), set()
    for low, high in itertools.pairwise(cuts):
        taken = systematic_sample(shares, low)
        assert np.array_equal(taken, systematic_sample(shares, high - 1)), "a cell has one sample"
        assert len(set(taken.tolist())) == len(taken), "no atom twice"
        measure[taken] += high - low
        sizes.add(len(taken))
    return measure, sizes


SPECTRA = {
    "normal": np.abs(np.random.default_rng(1).standard_normal(200)),
    "heavy tail": np.abs(np.random.default_rng(2).standard_t(1.2, 200)),
    "geometric": 0.5 ** np.arange(60),
    "equal": np.full(17, 3.0),
    "one large": np.array([1e9] + [1.0] * 50),
    "with zeros": np.array([0.0, 5.0, 0.0, 1.0, 1.0, 2.0, 0.0, 4.0]),
    "1e-300": 1e-300 * np.array([3.0, 1.0, 2.0, 5.0, 8.0]),
    "1e300": 1e300 * np.array([3.0, 1.0, 2.0, 5.0, 8.0]),
}


@pytest.mark.parametrize("budget", [0.3, 1, 1.5, 2, 3, 3.7, 4])
@pytest.mark.parametrize("name", SPECTRA)
def test_probabilities_are_those_of_an_independent_solver(name, budget):
    lam = SPECTRA[name]
    assert np.abs(optimal_probabilities(lam, budget) - by_bisection(lam, budget)).max() <= 1e-9


@pytest.mark.parametrize("seed", range(4))
def test_no_general_optimiser_finds_less_variance(seed):
    rng = np.random.default_rng(seed)
    lam = rng.exponential(size=6) + 0.05
    budget = 2.5
    p = optimal_probabilities(lam, budget)
    found = minimize(
        lambda q: np.sum(lam**2 / q),
        x0=np.full(6, budget / 6),
        bounds=[(1e-6, 1)] * 6,
        constraints={"type": "eq", "fun": lambda q: q.sum() - budget},
        options={"maxiter": 500, "ftol": 1e-14},
    )
    assert np.sum(lam**2 / p) <= found.fun * (1 + 1e-9)
    assert np.abs(found.x - p).max() < 1e-3


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.floats(0, 1e30).map(np.float32).map(float), min_size=1, max_size=40),
    st.floats(0.1, 45),
)
def test_the_optimality_conditions_hold(magnitudes, budget):
    lam = np.array(magnitudes)
    p = optimal_probabilities(lam, budget)
    positive = lam > 0
    assert np.array_equal(p > 0, positive)
    assert p.max(initial=0) <= 1
    assert math.isclose(math.fsum(p), min(budget, np.count_nonzero(positive)), rel_tol=1e-12)
    # stationarity: one multiplier c with p = c lambda below 1, and c lambda >= 1 where p = 1; clipping loses no budget
    uncertain = positive & (p < 1)
    if uncertain.any():
        multipliers = p[uncertain] / lam[uncertain]
        assert multipliers.max() <= multipliers.min() * (1 + 1e-9)
        assert np.all(multipliers.max() * lam[positive & (p == 1)] >= 1 - 1e-9)


def test_what_clipping_leaves_over_is_spent_on_the_rest():
    lam = np.array([10.0, 1.0, 1.0, 1.0, 1.0])
    naive = np.minimum(1.0, 2 * lam / lam.sum())
    assert naive.sum() == pytest.approx(11 / 7)  # the reference program stops here, 0.43 of an atom below the budget
    assert optimal_probabilities(lam, 2) == pytest.approx([1, 0.25, 0.25, 0.25, 0.25], abs=1e-15)


def test_small_atoms_keep_their_share_beside_huge_ones():
    lam = np.concatenate([[1e20], np.full(1000, 1e-10)])
    assert optimal_probabilities(lam, 3)[1:] == pytest.approx(np.full(1000, 2e-3), rel=1e-12)


def test_a_budget_of_all_atoms_takes_them_all():
    for budget in (3, 3.2, 8):
        assert np.array_equal(optimal_probabilities([2.0, 0.0, 7.0, 1e-9], budget), [1, 0, 1, 1])
    assert optimal_probabilities([], 3).size == 0
    assert np.array_equal(optimal_probabilities([0.0, 0.0], 1), [0, 0])


@pytest.mark.parametrize(
    ("magnitudes", "budget"),
    [
        ([1.0, -1.0], 1),
        ([np.nan], 1),
        ([np.inf], 1),
        ([[1.0]], 1),
        ([1.0], 0),
        ([1.0], -1),
        ([1.0], np.nan),
        ([1.0], MAX_BUDGET + 1),
    ],
)
def test_what_is_no_spectrum_or_budget_is_refused(magnitudes, budget):
    with pytest.raises(CodecValueError):
        optimal_probabilities(magnitudes, budget)


def test_one_level_qsgd_is_the_budget_l1_over_l2():
    g = np.random.default_rng(3).standard_normal(500)
    norm = np.linalg.norm(g)
    p = optimal_probabilities(np.abs(g), np.abs(g).sum() / norm)
    assert np.abs(p - np.abs(g) / norm).max() < 1e-12
    assert sampling_error(np.abs(g), p) == pytest.approx(norm * np.abs(g).sum() - norm**2, rel=1e-9)


def test_terngrad_is_the_budget_l1_over_the_maximum():
    g = np.random.default_rng(4).standard_normal(500)
    top = np.abs(g).max()
    p = optimal_probabilities(np.abs(g), np.abs(g).sum() / top)
    assert np.abs(p - np.abs(g) / top).max() < 1e-12
    assert sampling_error(np.abs(g), p) == pytest.approx(top * np.abs(g).sum() - np.sum(g**2), rel=1e-9)


@pytest.mark.parametrize("budget", [1, 2, 2.5, 3, 4])
@pytest.mark.parametrize("name", SPECTRA)
def test_every_atom_is_taken_exactly_as_often_as_its_probability(name, budget):
    p = optimal_probabilities(SPECTRA[name], budget)
    shares = ticks(p, budget)
    measure, sizes = inclusion(shares)
    assert np.array_equal(measure, shares)
    assert np.abs(shares / TICKS - p).max() < 1e-12
    spent = min(budget, np.count_nonzero(p))
    assert sizes == {math.floor(spent), math.ceil(spent)}


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=30), st.integers(1, 12))
@example([1.0, 1.0, 5e-324, 5e-324], 3)
@example([1e6, 5e-324, 5e-324, 5e-324], 2)
def test_an_integral_budget_always_makes_that_many_atoms(magnitudes, budget):
    shares = ticks(optimal_probabilities(magnitudes, budget), budget)
    measure, sizes = inclusion(shares)
    assert np.array_equal(measure, shares)
    assert sizes == {min(budget, np.count_nonzero(magnitudes))}


def test_a_budget_of_one_is_never_empty_and_needs_no_second_draw():
    lam = np.full(8, 1.0)
    shares = ticks(optimal_probabilities(lam, 1), 1)
    measure, sizes = inclusion(shares)
    assert sizes == {1}
    # independent draws, repeated while empty, take an atom with probability (1/8) / (1 - (7/8)^8), 1.5 times too often
    assert np.all(measure == TICKS // 8)


def test_an_atom_too_small_for_a_tick_is_still_possible():
    shares = ticks(optimal_probabilities([1.0, 1e-17, 0.0], 1), 1)
    assert np.array_equal(shares, [TICKS - 1, 1, 0])
    assert inclusion(shares)[1] == {1}


def test_probabilities_outside_their_bounds_and_starts_outside_a_stretch_are_refused():
    for p in ([-0.1, 1.0], [1.1], [np.nan], [[0.5]]):
        with pytest.raises(CodecValueError):
            ticks(p, 1)
    for start in (-1, TICKS):
        with pytest.raises(CodecValueError):
            systematic_sample(np.array([TICKS]), start)


def test_sampling_error_is_the_variance_of_the_estimator():
    lam = np.array([4.0, 2.0, 1.0, 1.0])
    p = optimal_probabilities(lam, 2)
    shares = ticks(p, 2)
    grid = range(0, TICKS, TICKS // 64)  # exhaustive, since p are multiples of 1/4
    errors = [np.sum((np.isin(np.arange(4), systematic_sample(shares, u)) / p * lam - lam) ** 2) for u in grid]
    assert np.mean(errors) == pytest.approx(sampling_error(lam, p), rel=1e-12)
    assert sampling_error([1.0, 0.0], [0.0, 0.0]) == math.inf
    assert sampling_error([0.0], [0.0]) == 0
