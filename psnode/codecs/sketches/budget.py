"""Allocation of a budget of buckets to clusters.

A bucket holds the mean of its members. Let the n_k values of cluster k have variance s_k, and be hashed at random into b_k
buckets. Their expected squared error is s_k (n_k - b_k (1 - exp(-n_k / b_k))). This is s_k times the difference between the
number of values and the expected number of non-empty buckets. The total error is least if

    s_k g(n_k / b_k) = mu for all k,   g(r) = 1 - (1 + r) exp(-r)

or b_k = 0 for clusters with s_k <= mu. The number mu is chosen so that the b_k use the budget. Finally each b_k is limited to
1..n_k.
"""

from __future__ import annotations

import numpy as np

from psnode.codecs.arrays import Float64s, Int64s
from psnode.codecs.kernels import clustering

_STEPS = 60


def optimal(counts: Int64s, variances: Float64s, budget: int) -> Int64s:
    """Return the sizes b_k with the least squared error for clusters of `counts` members with the given variances."""
    n, s = counts.astype(np.float64), np.where(counts > 0, variances, 0.0)
    low, high = 0.0, float(s.max(initial=0.0))
    sizes = np.empty(n.size, np.float64)
    for _ in range(_STEPS):  # bisect mu, which is larger the fewer buckets there are
        middle = (low + high) / 2
        clustering.bucket_sizes(n, s, middle, sizes)
        low, high = (middle, high) if sizes.sum() > budget else (low, middle)
    clustering.bucket_sizes(n, s, high, sizes)
    return _rounded(sizes, counts, budget)


def weighted(counts: Int64s, centres: Float64s, budget: int) -> Int64s:
    """Return sizes in proportion to the weights of the clusters, as in the paper.

    The weight of a cluster is its share of the entropy of the ids, times the magnitude of its centre.
    """
    lengths, total = np.empty(counts.size, np.float64), max(int(counts.sum()), 1)
    clustering.logarithms(total / np.maximum(counts, 1), lengths)
    weights = counts / total * lengths * np.abs(centres)
    whole = float(weights.sum())
    return _rounded(weights * (budget / whole) if whole else np.zeros(counts.size), counts, budget)


def _rounded(sizes: Float64s, counts: Int64s, budget: int) -> Int64s:
    """Return `sizes` rounded to integers from 1 to `counts`.

    Their sum is at most `budget`, unless there are more clusters than `budget`. Every cluster then gets one bucket.
    """
    whole = np.clip(np.floor(sizes).astype(np.int64), 1, np.maximum(counts, 1))
    for k in np.argsort(-whole, kind="stable"):  # reduce the largest sizes if raising others to 1 has exceeded the budget
        excess = int(whole.sum()) - max(budget, counts.size)
        whole[k] -= min(max(excess, 0), whole[k] - 1)
    return whole
