"""terngrad."""

from __future__ import annotations

from typing import Any

from psnode.codecs.rows.formula import Fields
from psnode.codecs.rows.known.base import Known
from psnode.codecs.rows.known.levels import factor
from psnode.codecs.rows.language import f32, i32, largest_of_all, stochastic, where
from psnode.codecs.rows.packings import trits
from psnode.codecs.rows.values import Value


class TernGradRows(Known):
    """terngrad without a clip: -s, 0 or s, the largest magnitude of all."""

    def to_fields(self, v: Value) -> Fields:
        scale = largest_of_all(v)
        up = where(scale < 2.0**-64, f32(2.0**64), 1.0)
        return Fields(scale=scale, digits=trits(stochastic(v * up * factor(scale * up, 1), -1)))

    def from_fields(self, scale: Value, digits: Value) -> Value:
        return where(digits == 0, -scale, f32(i32(digits >> 1)) * scale)  # faster than (digits - 1) scale, and than two wheres

    @classmethod
    def expresses(cls, codec: Any) -> bool:
        return not codec.clip
