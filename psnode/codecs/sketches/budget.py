"""Allocation of a budget of buckets to clusters.

A bucket holds the mean of its members. With n_k values of variance s_k thrown at random into b_k buckets, the squared error
that is left is s_k (n_k - b_k (1 - exp(-n_k / b_k))): values less the buckets that are not empty. It is least where

    s_k g(n_k / b_k) = mu for all k,   g(r) = 1 - (1 + r) exp(-r)

or b_k = 0 where s_k <= mu. Every cluster has one bucket at least, and at most as many as members. Exponentials are made of
products alone, so that sizes are equal on every machine.
"""

from __future__ import annotations

import numpy as np

from psnode.codecs.arrays import Float64s, Int64s
from psnode.codecs.kernels import clustering

_SQUARINGS = 12
_LARGEST = 600.0
_STEPS = 60
_AHEAD = 4  # bisections whose 15 possible values are tried in one sweep


def optimal(counts: Int64s, variances: Float64s, budget: int) -> Int64s:
    """The sizes with the least squared error for clusters of `counts` members with these variances."""
    n, s = counts.astype(np.float64), np.where(counts > 0, variances, 0.0)
    low, high = 0.0, float(s.max(initial=0.0))
    for _ in range(_STEPS // _AHEAD):  # of mu: the fewer buckets, the larger it is
        tree = _halvings(low, high)
        sizes = _sizes_at(n, s, np.array([middle for _, middle, _ in tree]))
        place = 0
        for _ in range(_AHEAD):
            many = float(sizes[place].sum()) > budget
            low, high = (tree[place][1], high) if many else (low, tree[place][1])
            place = 2 * place + 1 + many
    return _rounded(_sizes_at(n, s, np.array([high]))[0], counts, budget)


def _halvings(low: float, high: float) -> list[tuple[float, float, float]]:
    """(low, middle, high) of all intervals that the next bisections may reach: the halves of interval k are 2k + 1 and 2k + 2."""
    found = [(low, (low + high) / 2, high)]
    for place in range(2 ** (_AHEAD - 1) - 1):
        low, middle, high = found[place]
        found += [(low, (low + middle) / 2, middle), (middle, (middle + high) / 2, high)]
    return found


def weighted(counts: Int64s, centres: Float64s, budget: int) -> Int64s:
    """The sizes in proportion to each cluster's share of the ids' entropy times its centre's magnitude: the original's rule."""
    lengths, total = np.empty(counts.size, np.float64), max(int(counts.sum()), 1)
    clustering.logarithms(total / np.maximum(counts, 1), lengths)
    weights = counts / total * lengths * np.abs(centres)
    whole = float(weights.sum())
    return _rounded(weights * (budget / whole) if whole else np.zeros(counts.size), counts, budget)


def _sizes_at(n: Float64s, s: Float64s, mu: Float64s) -> Float64s:
    """n / r for s g(r) = mu, a row for each mu, by bisection of r in 0 .. 600; 0 where s <= mu."""
    wanted = s > mu[:, None]
    target = np.where(wanted, mu[:, None] / np.where(wanted, s, 1.0), 1.0)
    low, high = np.zeros(target.shape), np.full(target.shape, _LARGEST)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        above = 1 - (1 + middle) * _decay(middle) > target
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return np.where(wanted, n / np.maximum(high, 1.0), 0.0)


def _decay(r: Float64s) -> Float64s:
    """exp(-r) for r in 0 .. 600: a power series for r / 2^12, squared 12 times."""
    x = r / 2**_SQUARINGS
    result = 1 - x * (1 - x / 2 * (1 - x / 3 * (1 - x / 4 * (1 - x / 5))))
    for _ in range(_SQUARINGS):
        result = result * result
    return np.asarray(result)


def _rounded(sizes: Float64s, counts: Int64s, budget: int) -> Int64s:
    """Integers from 1 to the members, adding up to at most `budget` or the number of clusters."""
    whole = np.clip(np.floor(sizes).astype(np.int64), 1, np.maximum(counts, 1))
    for k in np.argsort(-whole, kind="stable"):  # those raised to 1 are paid for by the largest
        excess = int(whole.sum()) - max(budget, counts.size)
        whole[k] -= min(max(excess, 0), whole[k] - 1)
    return whole
