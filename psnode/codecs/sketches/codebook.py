"""Codebooks of scalars: the edges between clusters of an array's values. They are determined from a sample of the array."""

from __future__ import annotations

import numpy as np

from psnode.codecs.arrays import Float64s, Floats, Int64s, Words
from psnode.codecs.kernels import clustering
from psnode.codecs.rng import words

SAMPLE = 1 << 16
_RESOLUTION = 16  # low bits of a float32 that the exact search ignores
_HALVINGS = 24


def edges_of(x: Floats, clusters: int, rate: float | None, key: Words, stream: int) -> Floats:
    """Return the ascending edges of at most `clusters` clusters of the flat, finite x. There is at least one edge.

    On a sample of x, the edges have nearly the least squared error or, if `rate` is given, nearly the least squared error at
    which the ids have an entropy of at most `rate` bits.
    """
    ordered = np.sort(sample(x, key, stream))
    values = ordered.astype(np.float64)
    counts, sums, squares = (_cumulated(part) for part in (np.ones(values.size), values, values * values))
    ends = np.flatnonzero(np.diff(ordered.view(np.uint32) >> _RESOLUTION)) + 1
    ends = np.concatenate([[0], ends, [values.size]])
    stops = np.empty(min(clusters, ends.size - 1), np.int64)
    clustering.least_squares(counts[ends], sums[ends], squares[ends], stops.size, stops)
    stops = _settled(values, counts, sums, 0.0, ends[stops])
    if rate is not None and clustering.entropy(counts, stops) > rate:
        stops = _at_rate(values, counts, sums, squares[-1] / values.size, rate, stops)
    cuts = np.unique(stops[:-1])
    cuts = cuts[(cuts > 0) & (cuts < values.size)]
    if not cuts.size:
        return ordered[:1].copy()
    below, above = ordered[cuts - 1], ordered[cuts]
    middle = ((values[cuts - 1] + values[cuts]) / 2).astype(np.float32)
    return np.unique(np.where(middle > below, middle, above))


def sample(x: Floats, key: Words, stream: int) -> Floats:
    """Return a sample of the flat x: all its values if there are at most 2^16, else one from each of 2^16 equal stretches.

    The value of a stretch is drawn at random.
    """
    if x.size <= SAMPLE:
        return x
    starts = np.arange(SAMPLE + 1, dtype=np.uint64) * np.uint64(x.size) // np.uint64(SAMPLE)
    drawn = words(key, stream, SAMPLE // 4).reshape(-1).astype(np.uint64)
    return x[starts[:-1] + (drawn * np.diff(starts) >> np.uint64(32))]


def _cumulated(values: Float64s) -> Float64s:
    return np.concatenate([[0.0], np.cumsum(values)])


def _settled(values: Float64s, counts: Float64s, sums: Float64s, penalty: float, stops: Int64s) -> Int64s:
    settled = stops.copy()
    return settled[: clustering.settle(values, counts, sums, penalty, settled)]


def _at_rate(values: Float64s, counts: Float64s, sums: Float64s, power: float, rate: float, start: Int64s) -> Int64s:
    """Return the stops found with the least penalty per bit at which the ids have an entropy of at most `rate`.

    Stops are the ends of the clusters among the sorted values. The penalty is bisected between 2^-24 and 4 times the mean
    square.
    """
    low, high = power * 2.0**-24, power * 4
    found = _settled(values, counts, sums, high, start)
    for _ in range(_HALVINGS):
        middle = float(np.sqrt(low * high))
        stops = _settled(values, counts, sums, middle, start)
        if clustering.entropy(counts, stops) > rate:
            low = middle
        else:
            high, found = middle, stops
    return found
