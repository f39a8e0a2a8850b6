"""Formula of the codec sign."""

from __future__ import annotations

from psnode.codecs.rows.formula import Fields
from psnode.codecs.rows.known.base import Known
from psnode.codecs.rows.language import any_of, coin, f32, where
from psnode.codecs.rows.packings import signs
from psnode.codecs.rows.values import Value


class SignRows(Known):
    """sign: one bit per coordinate. For a zero, whether 0 or -0, a coin decides the sign."""

    def to_fields(self, v: Value) -> Fields:
        return Fields(negative=signs(is_negative(v)))

    def from_fields(self, negative: Value) -> Value:
        return where(negative, f32(-1.0), 1.0)


def is_negative(v: Value) -> Value:
    """Return True for numbers below 0, and for zeros (0 or -0) whose coin is True."""
    return where(any_of(v == 0), where(v == 0, coin(), v < 0), v < 0)
