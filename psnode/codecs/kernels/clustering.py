"""One-dimensional clustering of weighted values that minimises the squared error, or the error plus a penalty on bits.

`counts`, `sums` and `squares` are cumulative over ascending values, except in bucket_sizes: element i is the total over the
first i values. The squared error of any run of values around its mean is therefore computed from three differences. Arithmetic
is in float64, in a fixed order, without functions that differ between libraries. Clusters are therefore equal on every machine.
"""

from __future__ import annotations

import numpy as np

from psnode.codecs.arrays import Float64s, Int64s
from psnode.codecs.kernels.cache_hints import copy_to
from psnode.codecs.kernels.jit import inlined, kernel

_SWEEPS = 100
_TERMS = 27
_SQUARINGS = 12
_HALVINGS = 60
_LARGEST = 600.0


@inlined
def _cost(counts: Float64s, sums: Float64s, squares: Float64s, start: int, stop: int) -> float:
    """Return the squared error of values start..stop-1 around their mean."""
    n = counts[stop] - counts[start]
    if n <= 0:
        return 0.0
    total = sums[stop] - sums[start]
    return float(max(0.0, squares[stop] - squares[start] - total * total / n))


@kernel
def least_squares(counts: Float64s, sums: Float64s, squares: Float64s, clusters: int, stops: Int64s) -> None:
    """Write the end of run k to stops[k], for the partition into `clusters` runs with the least squared error.

    The algorithm is dynamic programming over the number of runs. The best last cut increases with the end. Therefore divide and
    conquer finds all cuts for one number of runs in O(M log M), where M is the number of values: Wang and Song,
    "Ckmeans.1d.dp", R Journal 3(2), 2011, as sped up by Song and Zhong, Bioinformatics 36, 2020.
    """
    m = counts.size - 1
    best, previous = np.empty(m + 1, np.float64), np.empty(m + 1, np.float64)
    cuts = np.zeros((clusters, m + 1), np.int32)
    for stop in range(m + 1):
        previous[stop] = _cost(counts, sums, squares, 0, stop)
    stack = np.empty((64, 4), np.int64)
    # Divide and conquer over ends: the best cut of the middle end bounds the cuts of all ends on either side. The depth of the
    # stack is at most log2(M) + 2.
    for k in range(1, clusters):
        stack[0, 0], stack[0, 1], stack[0, 2], stack[0, 3] = 0, m, 0, m
        depth = 1
        while depth:
            depth -= 1
            low, high, first, last = stack[depth, 0], stack[depth, 1], stack[depth, 2], stack[depth, 3]
            if low > high:
                continue
            stop = (low + high) // 2
            least = np.inf
            where = first
            for cut in range(first, min(last, stop) + 1):
                total = previous[cut] + _cost(counts, sums, squares, cut, stop)
                if total < least:
                    least = total
                    where = cut
            best[stop] = least
            cuts[k, stop] = where
            stack[depth, 0], stack[depth, 1], stack[depth, 2], stack[depth, 3] = low, stop - 1, first, where
            stack[depth + 1, 0], stack[depth + 1, 1], stack[depth + 1, 2], stack[depth + 1, 3] = stop + 1, high, where, last
            depth += 2
        copy_to(best, previous)
    end = np.int64(m)
    for k in range(clusters - 1, -1, -1):
        stops[k] = end
        end = np.int64(cuts[k, end])


@inlined
def _log2(v: float) -> float:
    """Return log2 of v >= 1. It is computed from a power of two and the series of the inverse hyperbolic tangent."""
    result = 0.0
    while v >= 2.0:
        v *= 0.5
        result += 1.0
    y = (v - 1.0) / (v + 1.0)
    term = y
    total = 0.0
    for n in range(1, _TERMS, 2):
        total += term / n
        term *= y * y
    return result + total * 2.8853900817779268  # 2 / ln 2


@kernel
def logarithms(values: Float64s, out: Float64s) -> None:
    """Write log2(values) to `out`. Each value is at least 1."""
    for i in range(values.size):
        out[i] = _log2(values[i])


@kernel
def entropy(counts: Float64s, stops: Int64s) -> float:
    """Return the number of bits per value that an ideal code of the runs' ids takes."""
    total = 0.0
    whole = counts[-1]
    start = np.int64(0)
    for stop in stops:
        n = counts[stop] - counts[start]
        if n > 0:
            total += n * _log2(whole / n)
        start = stop
    return float(total / whole)


@kernel
def settle(values: Float64s, counts: Float64s, sums: Float64s, penalty: float, stops: Int64s) -> int:
    """Move the ends of the runs until squared error + penalty * bits has a local minimum. Return the number of runs left.

    The search stops after 100 sweeps even if it has not reached the minimum.

    A value belongs to the run k with the least (v - mean_k)^2 + penalty * log2(1 / share_k), where share_k is the run's share
    of all values. Source: Chou, Lookabaugh, Gray, "Entropy-constrained vector quantization", IEEE Trans. ASSP 37(1), 1989.
    """
    used = stops.size
    m = values.size
    means, lengths = np.empty(used, np.float64), np.empty(used, np.float64)
    for _ in range(_SWEEPS):
        kept = 0
        start = np.int64(0)
        for k in range(used):
            n = counts[stops[k]] - counts[start]
            if n > 0:
                means[kept] = (sums[stops[k]] - sums[start]) / n
                lengths[kept] = penalty * _log2(counts[m] / n)
                stops[kept] = stops[k]
                kept += 1
            start = stops[k]
        used = kept
        moved = False
        low = np.int64(0)
        for k in range(used - 1):
            # Runs k and j cost the same at v = (mean_k + mean_j) / 2 + (length_j - length_k) / (2 (mean_j - mean_k)).
            edge = np.inf
            for other in range(k + 1, used):  # the first run that takes over from k
                gap = means[other] - means[k]
                if gap > 0:
                    edge = min(edge, 0.5 * (means[k] + means[other]) + (lengths[other] - lengths[k]) / (2.0 * gap))
            stop, high = low, np.int64(m)
            while stop < high:
                middle = (stop + high) // 2
                if values[middle] < edge:
                    stop = middle + 1
                else:
                    high = middle
            moved = moved or stop != stops[k]
            stops[k] = stop
            low = stop
        if not moved:
            break
    return used


@inlined
def _decay(r: float) -> float:
    """Return exp(-r) for r in 0 .. 600. It is the power series at r / 2^12, squared 12 times."""
    x = r / 4096.0
    result = 1.0 - x * (1.0 - x / 2.0 * (1.0 - x / 3.0 * (1.0 - x / 4.0 * (1.0 - x / 5.0))))
    for _ in range(_SQUARINGS):
        result *= result
    return result


@kernel
def bucket_sizes(counts: Float64s, variances: Float64s, mu: float, sizes: Float64s) -> None:
    """Write the size n / r for every cluster of n values of variance s, where r solves s g(r) = mu. The size is 0 if s <= mu.

    g(r) = 1 - (1 + r) exp(-r), as in psnode.codecs.sketches.budget. r is found by bisection in 0 .. 600, and n / r is limited
    to n.
    """
    for k in range(counts.size):
        sizes[k] = 0.0
        if variances[k] > mu:
            target = mu / variances[k]
            low = 0.0
            high = _LARGEST
            for _ in range(_HALVINGS):
                middle = (low + high) / 2.0
                if 1.0 - (1.0 + middle) * _decay(middle) > target:
                    high = middle
                else:
                    low = middle
            sizes[k] = counts[k] / max(high, 1.0)
