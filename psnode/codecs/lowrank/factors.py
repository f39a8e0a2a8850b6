"""Rank-one terms as one float32 vector, and back: for each term the m entries of its left factor, then the n of its right."""

from __future__ import annotations

import numpy as np

from psnode.codecs.arrays import Float64s, Floats, readonly

_LARGEST = float(np.finfo(np.float32).max) * (1 - 2.0**-18)  # room for the rounding of the factors
_TINY = float(np.finfo(np.float64).tiny)


def fold(left: Float64s, right: Float64s, probabilities: Float64s) -> Floats:
    """The terms left (k, m) times right (k, n), each over its probability: k (m + n) values, of equal RMS in both factors.

    If their sum, or a part of it in ascending order, exceeds float32 anywhere, all terms are scaled down until it fits.
    """
    (k, m), n = left.shape, right.shape[1]
    lengths_left, lengths_right = (np.maximum(np.linalg.norm(side, axis=1), _TINY) for side in (left, right))
    scale = np.sqrt(lengths_right / lengths_left / probabilities) * (m / n) ** 0.25
    values = np.empty((k, m + n))
    values[:, :m] = left * scale[:, None]
    values[:, m:] = right / (scale * probabilities)[:, None]
    tops = np.max(np.abs(values[:, :m]), axis=1) * np.max(np.abs(values[:, m:]), axis=1)
    if tops.sum() > _LARGEST:
        values *= min(1.0, _LARGEST / _peak(values[:, :m], values[:, m:])) ** 0.5
    return values.astype(np.float32).reshape(-1)


def _peak(left: Float64s, right: Float64s) -> float:
    """The largest magnitude of a term or of a sum of the first few terms."""
    total, peak = np.zeros((left.shape[1], right.shape[1])), 0.0
    for one, other in zip(left, right, strict=True):
        term = np.outer(one, other)
        total += term
        peak = max(peak, float(np.max(np.abs(term))), float(np.max(np.abs(total))))
    return peak


def unfold(values: Floats, terms: int, m: int, n: int) -> tuple[Floats, Floats]:
    """The factors (terms, m) and (terms, n), contiguous."""
    table = values.reshape(terms, m + n)
    return readonly(np.ascontiguousarray(table[:, :m])), readonly(np.ascontiguousarray(table[:, m:]))
