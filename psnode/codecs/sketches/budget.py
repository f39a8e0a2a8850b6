"""Allocation of a budget of buckets to clusters.

A bucket holds the mean of its members. If n_k values of variance s_k are hashed at random into b_k buckets, the expected squared
error is s_k (n_k - b_k (1 - exp(-n_k / b_k))), that is s_k times the difference between the number of values and the number of
non-empty buckets. The total error is least if

    s_k g(n_k / b_k) = mu for all k,   g(r) = 1 - (1 + r) exp(-r)

or b_k = 0 if s_k <= mu. Then b_k is limited to at least one bucket and at most n_k. Exponentials are computed only by products,
so that the sizes are equal on every machine.
"""

from __future__ import annotations

import numpy as np

from psnode.codecs.arrays import Float64s, Int64s
from psnode.codecs.kernels import clustering

_SQUARINGS = 12
_LARGEST = 600.0
_STEPS = 60
_AHEAD = 4  # bisection steps done at once, by evaluating all 15 possible middles


def optimal(counts: Int64s, variances: Float64s, budget: int) -> Int64s:
    """Return the sizes with the least squared error for clusters of `counts` members with these variances."""
    n, s = counts.astype(np.float64), np.where(counts > 0, variances, 0.0)
    low, high = 0.0, float(s.max(initial=0.0))
    for _ in range(_STEPS // _AHEAD):  # bisect mu, which is larger the fewer buckets there are
        tree = _halvings(low, high)
        sizes = _sizes_at(n, s, np.array([middle for _, middle, _ in tree]))
        place = 0
        for _ in range(_AHEAD):
            many = float(sizes[place].sum()) > budget
            low, high = (tree[place][1], high) if many else (low, tree[place][1])
            place = 2 * place + 1 + many
    return _rounded(_sizes_at(n, s, np.array([high]))[0], counts, budget)


def _halvings(low: float, high: float) -> list[tuple[float, float, float]]:
    """Return (low, middle, high) of all intervals that the next bisections can reach; the halves of k are 2k + 1 and 2k + 2."""
    found = [(low, (low + high) / 2, high)]
    for place in range(2 ** (_AHEAD - 1) - 1):
        low, middle, high = found[place]
        found += [(low, (low + middle) / 2, middle), (middle, (middle + high) / 2, high)]
    return found


def weighted(counts: Int64s, centres: Float64s, budget: int) -> Int64s:
    """Return sizes in proportion to each cluster's share of the ids' entropy times its centre's magnitude, as in the paper."""
    lengths, total = np.empty(counts.size, np.float64), max(int(counts.sum()), 1)
    clustering.logarithms(total / np.maximum(counts, 1), lengths)
    weights = counts / total * lengths * np.abs(centres)
    whole = float(weights.sum())
    return _rounded(weights * (budget / whole) if whole else np.zeros(counts.size), counts, budget)


def _sizes_at(n: Float64s, s: Float64s, mu: Float64s) -> Float64s:
    """Return n / r with s g(r) = mu, a row for each mu, by bisection of r in 0 .. 600; 0 where s <= mu."""
    wanted = s > mu[:, None]
    target = np.where(wanted, mu[:, None] / np.where(wanted, s, 1.0), 1.0)
    low, high = np.zeros(target.shape), np.full(target.shape, _LARGEST)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        above = 1 - (1 + middle) * _decay(middle) > target
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return np.where(wanted, n / np.maximum(high, 1.0), 0.0)


def _decay(r: Float64s) -> Float64s:
    """Return exp(-r) for r in 0 .. 600: the power series at r / 2^12, squared 12 times."""
    x = r / 2**_SQUARINGS
    result = 1 - x * (1 - x / 2 * (1 - x / 3 * (1 - x / 4 * (1 - x / 5))))
    for _ in range(_SQUARINGS):
        result = result * result
    return np.asarray(result)


def _rounded(sizes: Float64s, counts: Int64s, budget: int) -> Int64s:
    """Round sizes to integers from 1 to `counts` with a sum of at most `budget`, or one each if there are more clusters."""
    whole = np.clip(np.floor(sizes).astype(np.int64), 1, np.maximum(counts, 1))
    for k in np.argsort(-whole, kind="stable"):  # reduce the largest sizes if raising others to 1 has exceeded the budget
        excess = int(whole.sum()) - max(budget, counts.size)
        whole[k] -= min(max(excess, 0), whole[k] - 1)
    return whole
