"""Probabilities and sampling of ATOMO, for any orthonormal atoms.

A gradient g = sum lambda_i a_i is estimated by sum (t_i lambda_i / p_i) a_i, where t_i is 1 with probability p_i, else 0. The
estimate is unbiased for every p > 0. Its expected squared error, sum lambda_i^2 / p_i - sum lambda_i^2, does not depend on the
correlation of the t_i. Two functions choose the p and the joint distribution of the t_i:

* `optimal_probabilities` returns the p with the least squared error for a given expected number of atoms, the budget s.
* `systematic_sample` takes each atom with probability p_i, floor(s) or ceil(s) atoms in all, so that messages have nearly
  constant size. With independent draws some messages would be empty, and drawing again in that case would cause a bias.

Probabilities are multiples of 2^-48 and are added as integers. Therefore an atom is taken with exactly the probability that
divides its coefficient. If the budget is an integer and there are at least as many non-zero atoms, exactly that many atoms are
taken.

Source: Wang, Sievert, Charles, Liu, Wright, Papailiopoulos, "ATOMO: Communication-efficient Learning via Atomic
Sparsification", NeurIPS 2018, Theorem 3 and Algorithm 1; Madow, "On the theory of systematic sampling", 1949.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from psnode.codecs.arrays import Float64s, Int64s
from psnode.errors import CodecValueError

TICK_BITS = 48
TICKS = 1 << TICK_BITS
MAX_BUDGET = 1 << 14
"""With a larger budget, the running sum of ticks would leave int64; no low-rank message has that many atoms."""


def optimal_probabilities(magnitudes: npt.ArrayLike, budget: float) -> Float64s:
    """Return the p that minimise sum lambda_i^2 / p_i subject to 0 < p_i <= 1 and sum p_i = budget.

    `magnitudes` are the |lambda_i| >= 0, 1-D, of any order and scale. Atoms of magnitude 0 get p = 0. If the budget is at least
    the number of other atoms, these get p = 1. Otherwise p_i = min(1, c |lambda_i|), with the c for which the p_i add up to the
    budget. This c is found by water-filling: while the proportional share of the largest remaining atom would exceed 1, this
    atom gets p = 1. The other atoms then divide the rest of the budget in proportion to their magnitudes.

    Returns float64 of the shape of `magnitudes`. Raises `CodecValueError` for an entry that is negative or not finite, and for
    a budget out of bounds.
    """
    lam = np.asarray(magnitudes, dtype=np.float64)
    if lam.ndim != 1 or not np.all(np.isfinite(lam)) or np.any(lam < 0):
        raise CodecValueError("magnitudes must be a vector of finite values >= 0")
    if not 0 < budget <= MAX_BUDGET:
        raise CodecValueError(f"budget must be in (0, {MAX_BUDGET}], not {budget}")
    positive = np.flatnonzero(lam)
    probabilities = np.zeros(lam.size)
    if positive.size <= budget:
        probabilities[positive] = 1.0
        return probabilities
    order = positive[np.argsort(-lam[positive], kind="stable")]
    ranked = np.maximum(lam[order] / lam[order[0]], np.finfo(np.float64).tiny)
    tail = np.cumsum(ranked[::-1])[::-1]  # tail[k] = ranked[k:].sum(), the smallest added first
    left = budget - np.arange(ranked.size)
    certain = int(np.argmax(left * ranked <= tail))  # the first atom with a share of at most 1; it exists, as size > budget
    share = np.ones(ranked.size)
    share[certain:] = np.minimum(1.0, left[certain] * (ranked[certain:] / tail[certain]))
    probabilities[order] = share
    return probabilities


def ticks(probabilities: npt.ArrayLike, budget: float) -> Int64s:
    """Return probabilities as integers in units of 2^-48. Probabilities above 0 stay above 0.

    `probabilities` must add up to `budget` or all be 0 or 1. The integers add up to the rounded budget. Rounding causes a
    difference of at most half a unit per atom, which is corrected in the largest uncertain atoms first. Coefficients must be
    divided by the rounded probability, `ticks / 2^48`. Raises CodecValueError.
    """
    p = np.asarray(probabilities, dtype=np.float64)
    if p.ndim != 1 or not np.all((p >= 0) & (p <= 1)):
        raise CodecValueError("probabilities must be a vector of values within [0, 1]")
    rounded = np.rint(p * TICKS).astype(np.int64)
    rounded[(p > 0) & (rounded == 0)] = 1
    uncertain = (p > 0) & (p < 1)
    excess = int(rounded.sum()) - round(budget * TICKS) if uncertain.any() else 0
    for i in np.lexsort((-p, ~uncertain)):
        if excess == 0:
            break
        moved = min(max(int(rounded[i]) - excess, 1), TICKS)
        excess -= int(rounded[i]) - moved
        rounded[i] = moved
    return rounded


def systematic_sample(shares: Int64s, start: int) -> Int64s:
    """Return the atoms taken by systematic sampling, as ascending indices, int64.

    The intervals of the cumulative sum of `shares` belong to the atoms. An atom is taken if its interval contains one of the
    points start, start + 2^48, ... `shares` are `ticks`, and `start` is uniform in [0, 2^48). Atom i is taken with probability
    exactly shares[i] / 2^48, at most once. The number of atoms is the total of the shares in units of 2^48, rounded down or up.
    Raises CodecValueError.
    """
    if not 0 <= start < TICKS:
        raise CodecValueError(f"start must be in [0, 2^{TICK_BITS}), not {start}")
    edges = np.cumsum(shares)
    total = int(edges[-1]) if edges.size else 0
    points = np.arange(start, total, TICKS, dtype=np.int64)
    return np.searchsorted(edges, points, side="right").astype(np.int64)


def sampling_error(magnitudes: npt.ArrayLike, probabilities: npt.ArrayLike) -> float:
    """Return the expected squared error sum lambda^2 / p - sum lambda^2. It is infinite if p is 0 for an atom with lambda > 0."""
    lam, p = np.asarray(magnitudes, dtype=np.float64), np.asarray(probabilities, dtype=np.float64)
    held = lam > 0
    if np.any(p[held] <= 0):
        return float("inf")
    return float(np.sum(lam[held] ** 2 * (1 - p[held]) / p[held]))
