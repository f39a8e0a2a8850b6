"""The probabilities and the sampling of ATOMO, for any orthonormal atoms.

A gradient g = sum lambda_i a_i is estimated by sum (t_i lambda_i / p_i) a_i, where t_i is 1 with probability p_i. That is
unbiased for every p > 0, and its squared error, sum lambda_i^2 / p_i - sum lambda_i^2, does not depend on how the t_i hang
together. Two choices remain, one function each.

* `optimal_probabilities`: the p of a given expected number of atoms, the budget s, with the least squared error.
* `systematic_sample`: a draw that keeps every p_i and makes the number of atoms floor(s) or ceil(s), so that a message has
  a constant size. Independent draws would leave messages empty, and drawing again when they are is biased.

Probabilities are multiples of 2^-48, added up as integers: inclusion has exactly the probability that divides the
coefficient, and an integral budget gives exactly that many atoms whatever the rounding.

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
"""Above it the running sum of ticks would leave int64; no low-rank message has that many atoms."""


def optimal_probabilities(magnitudes: npt.ArrayLike, budget: float) -> Float64s:
    """The minimiser of sum lambda_i^2 / p_i subject to 0 < p_i <= 1 and sum p_i = budget.

    `magnitudes` are the |lambda_i| >= 0, 1-D, any order and scale; atoms of magnitude 0 get p = 0. Where the budget covers
    all others they get p = 1. Otherwise p_i = min(1, c |lambda_i|) with the c that spends the budget (water-filling): the
    largest atom is certain as long as its share of the rest would exceed 1, the rest share in proportion.

    Returns float64, the shape of `magnitudes`. Raises `CodecValueError` for a negative or non-finite entry or budget.
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
    certain = int(np.argmax(left * ranked <= tail))  # the first atom whose share is at most 1: exists, as size > budget
    share = np.ones(ranked.size)
    share[certain:] = np.minimum(1.0, left[certain] * (ranked[certain:] / tail[certain]))
    probabilities[order] = share
    return probabilities


def ticks(probabilities: npt.ArrayLike, budget: float) -> Int64s:
    """Probabilities that add up to `budget` (or are all 0 or 1), as integers in units of 2^-48; p > 0 stays above 0.

    The integers add up to the rounded budget: the difference by rounding (half a unit an atom) is settled with the largest
    uncertain atoms first. The probability in force is `ticks / 2^48`: divide by that one.
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
    """The atoms whose stretch of the running sum of `shares` holds one of the points start, start + 2^48, ...

    `shares` are `ticks`, `start` is uniform in [0, 2^48). Atom i is taken with probability exactly shares[i] / 2^48, no atom
    twice, and the number of atoms is floor or ceil of the total. Returns ascending indices, int64.
    """
    if not 0 <= start < TICKS:
        raise CodecValueError(f"start must be in [0, 2^{TICK_BITS}), not {start}")
    edges = np.cumsum(shares)
    total = int(edges[-1]) if edges.size else 0
    points = np.arange(start, total, TICKS, dtype=np.int64)
    return np.searchsorted(edges, points, side="right").astype(np.int64)


def sampling_error(magnitudes: npt.ArrayLike, probabilities: npt.ArrayLike) -> float:
    """Expected squared error sum lambda^2 / p - sum lambda^2 of the estimator; infinite if an atom is never taken."""
    lam, p = np.asarray(magnitudes, dtype=np.float64), np.asarray(probabilities, dtype=np.float64)
    held = lam > 0
    if np.any(p[held] <= 0):
        return float("inf")
    return float(np.sum(lam[held] ** 2 * (1 - p[held]) / p[held]))
