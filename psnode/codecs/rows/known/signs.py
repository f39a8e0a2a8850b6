"""Formulas of the codecs scaledsign and onebit: a sign for every coordinate, and means over the whole input as magnitudes."""

from __future__ import annotations

from psnode.codecs.rows.formula import Fields
from psnode.codecs.rows.known.base import Known
from psnode.codecs.rows.known.sign import is_negative
from psnode.codecs.rows.language import LARGEST, count_of_all, f32, f64, maximum, minimum, size_of_all, sum_of_all, u32, where
from psnode.codecs.rows.packings import signs
from psnode.codecs.rows.values import Value


class ScaledSignRows(Known):
    """scaledsign without buckets: each coordinate becomes its sign times the mean magnitude of all coordinates."""

    def to_fields(self, v: Value) -> Fields:
        mean = f32(minimum(sum_of_all(abs(v)) / f64(size_of_all()), LARGEST))
        return Fields(bucket=u32(0), mean=mean, negative=signs(is_negative(v)))

    def from_fields(self, bucket: Value, mean: Value, negative: Value) -> Value:
        return where(negative, -mean, mean)


class OneBitRows(Known):
    """onebit: each coordinate becomes the mean of all coordinates with the same sign.

    A coin decides the sign of a zero. A zero adds nothing to the sum of its sign.
    """

    def to_fields(self, v: Value) -> Fields:
        negative = is_negative(v)
        below = count_of_all(negative)
        low = self._mean(sum_of_all(where(v < 0, -v, 0)), below)
        high = self._mean(sum_of_all(where(v > 0, v, 0)), size_of_all() - below)
        return Fields(low=-low, high=high, negative=signs(negative))

    def _mean(self, total: Value, count: Value) -> Value:
        return f32(minimum(total / f64(maximum(count, 1)), LARGEST))

    def from_fields(self, low: Value, high: Value, negative: Value) -> Value:
        return where(negative, low, high)
