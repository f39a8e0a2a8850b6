"""Formula of the codec minmax."""

from __future__ import annotations

from psnode.codecs.rows.formula import Fields
from psnode.codecs.rows.known.base import Known
from psnode.codecs.rows.known.levels import below_by_one, factor
from psnode.codecs.rows.language import clip, f32, f64, greatest_of_all, i32, least_of_all, stochastic, u32, where
from psnode.codecs.rows.packings import planes
from psnode.codecs.rows.values import Value


class MinMaxRows(Known):
    """minmax: equal steps from the least to the greatest value.

    Values are first scaled so that float32 can hold their span and its inverse.
    """

    def to_fields(self, v: Value) -> Fields:
        steps = 2**self.codec.bits - 1
        least, greatest = least_of_all(v), greatest_of_all(v)
        up = self._up(least, greatest)
        base = least * up
        scaled = (v * up - base) * factor(greatest * up - base, steps)
        codes = stochastic(clip(scaled, 0.0, steps * 65536.0), 0)  # clips only the zeros that pad the last row
        return Fields(width=u32(self.codec.bits), least=least, greatest=greatest, codes=planes(codes, self.codec.bits))

    def from_fields(self, width: Value, least: Value, greatest: Value, codes: Value) -> Value:
        steps, up = 2**self.codec.bits - 1, self._up(least, greatest)
        base, end = least * up, greatest * up
        step = f32((f64(greatest) - f64(least)) * f64(up) / float(steps))
        for _ in range(2):  # rounding puts the last value above the end by less than two units in the last place of the step
            step = where(base + step * float(steps) > end, below_by_one(step), step)
        return (base + f32(i32(codes)) * step) * (1.0 / up)

    def _up(self, least: Value, greatest: Value) -> Value:
        span = f64(greatest) - f64(least)
        return where((span > 0) & (span < 2.0**-64), f32(2.0**64), where(span > 2.0**120, f32(0.25), 1.0))
