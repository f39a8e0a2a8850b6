"""sign."""

from __future__ import annotations

from psnode.codecs.rows.formula import Fields
from psnode.codecs.rows.known.base import Known
from psnode.codecs.rows.language import any_of, coin, f32, where
from psnode.codecs.rows.packings import signs
from psnode.codecs.rows.values import Value


class SignRows(Known):
    """sign: one bit; zeros of either sign toss a coin."""

    def to_fields(self, v: Value) -> Fields:
        return Fields(negative=signs(where(any_of(v == 0), where(v == 0, coin(), v < 0), v < 0)))

    def from_fields(self, negative: Value) -> Value:
        return where(negative, f32(-1.0), 1.0)
