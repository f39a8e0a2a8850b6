"""Formula of the codec terngrad."""

from __future__ import annotations

from psnode.codecs.rows.formula import Fields
from psnode.codecs.rows.known.base import Known
from psnode.codecs.rows.known.levels import factor
from psnode.codecs.rows.language import (
    clip,
    f32,
    f64,
    i32,
    l2_norm_of_all,
    largest_of_all,
    minimum,
    parameter,
    size_of_all,
    sqrt,
    stochastic,
    where,
)
from psnode.codecs.rows.packings import trits
from psnode.codecs.rows.values import Value


class TernGradRows(Known):
    """terngrad: every value becomes -s, 0 or s, rounded at random without bias.

    s is the largest magnitude of the input, or `clip` times the root mean square if this product is less. Values are first
    limited to -s..s.
    """

    def to_fields(self, v: Value) -> Fields:
        scale = largest_of_all(v)
        if self.codec.clip:
            deviation = l2_norm_of_all(v) / sqrt(f64(size_of_all()))
            scale = f32(minimum(deviation * parameter(f64(self.codec.clip)), f64(scale)))
            v = clip(v, -scale, scale)
        up = where(scale < 2.0**-64, f32(2.0**64), 1.0)
        return Fields(scale=scale, digits=trits(stochastic(v * up * factor(scale * up, 1), -1)))

    def from_fields(self, scale: Value, digits: Value) -> Value:
        return f32(i32(digits) - 1) * scale
