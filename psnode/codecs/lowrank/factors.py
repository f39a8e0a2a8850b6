"""Conversion of rank-one terms to and from a float32 vector.

It holds, for each term, the left factor (m), then the right factor (n).
"""

from __future__ import annotations

import numpy as np

from psnode.codecs.arrays import Float64s, Floats, readonly

_LARGEST = float(np.finfo(np.float32).max) * (1 - 2.0**-18)  # room for the rounding of the factors
_TINY = float(np.finfo(np.float64).tiny)


def fold(left: Float64s, right: Float64s, probabilities: Float64s) -> Floats:
    """Return k (m + n) float32 values for k terms left[i] right[i]^T, each divided by its probability. Shapes: (k, m) and (k, n).

    The entries of both factors of a term have equal RMS. If the sum of the terms, or a partial sum in ascending order, leaves
    float32's range anywhere, all terms are scaled down until it fits.
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
    """Return the largest magnitude in any term or any partial sum of the terms."""
    total, peak = np.zeros((left.shape[1], right.shape[1])), 0.0
    for one, other in zip(left, right, strict=True):
        term = np.outer(one, other)
        total += term
        peak = max(peak, float(np.max(np.abs(term))), float(np.max(np.abs(total))))
    return peak


def unfold(values: Floats, terms: int, m: int, n: int) -> tuple[Floats, Floats]:
    """Return the left factors (terms, m) and the right factors (terms, n), contiguous and read-only."""
    table = values.reshape(terms, m + n)
    return readonly(np.ascontiguousarray(table[:, :m])), readonly(np.ascontiguousarray(table[:, m:]))
