"""Formula of the codec nuqsgd."""

from __future__ import annotations

from psnode.codecs.rows.formula import Fields
from psnode.codecs.rows.known.base import Known
from psnode.codecs.rows.known.bucket_norms import ordinary
from psnode.codecs.rows.language import (
    ROW,
    bits,
    f32,
    f64,
    floor,
    from_bits,
    given,
    i32,
    l2_norm,
    largest,
    minimum,
    parameter,
    random16,
    settle,
    u32,
    where,
)
from psnode.codecs.rows.packings import planes
from psnode.codecs.rows.values import Value

_BIAS, _FRACTION = 127, 0x7FFFFF  # the bias of a float32's exponent, and the bits of its mantissa


class NuqsgdRows(Known):
    """nuqsgd with buckets of 512: |v| / norm is rounded at random, without bias, to a power of two.

    Rows of larger buckets are coded like buckets of 512, with norms that the caller provides. For rounding, the exponent and 16
    bits of the mantissa are treated as one integer: e 2^16 + f stands for 2^(e - 127) (1 + f / 2^16). Adding random bits
    carries into the exponent. Divisions by norms outside 2^-50 to 2^50 are done in float64. The number of levels is a parameter
    of the program.
    """

    def to_fields(self, v: Value) -> Fields:
        s = parameter(u32(self.codec.levels))
        norm = given() if self.codec.bucket > ROW else f32(l2_norm(v)) if self.codec.norm == "l2" else largest(v)
        near = self._near(minimum(abs(v) * f32(1 / f64(norm)), 1.0), s)
        far = self._far(minimum(abs(f64(v)) / f64(norm), 1.0), s)
        negative = bits(v) >> 31
        q = where(norm == 0, u32(0), where(ordinary(norm), self._code(near, negative, s), self._code(far, negative, s)))
        return Fields(levels=s, bucket=u32(ROW), norms=norm, codes=planes(q, (2 * self.codec.levels + 2).bit_length()))

    def _near(self, r: Value, s: Value) -> Value:
        """Return the exponent to which `r` (float32, at most 1) is rounded.

        For 0 it is one below the exponent of the least level.
        """
        least = _power(-i32(s))
        below = minimum(r, least) * _power(i32(s) + 16)
        is_above = r >= least
        start = where(is_above, bits(r) >> 7, u32(i32(below)) + (_BIAS - 1 - s << 16))
        return settle(start + random16(), where(is_above, f32(i32(bits(r) & _FRACTION)) * 2.0**-7, below))

    def _far(self, r: Value, s: Value) -> Value:
        """Return the exponent to which `r` (float64, at most 1) is rounded, as `_near` does for a float32."""
        rounded = bits(f32(r)) >> 23
        exponent = where(f64(from_bits(rounded << 23)) > r, rounded - 1, rounded)
        is_above = r >= f64(_power(-i32(s)))
        rest = where(is_above, r * f64(from_bits(2 * _BIAS - exponent << 23)) - 1.0, r * f64(_power(i32(s)))) * 65536.0
        start = where(is_above, exponent, _BIAS - 1 - s) << 16
        return settle(start + u32(i32(floor(rest))) + random16(), rest)

    def _code(self, exponent: Value, negative: Value, s: Value) -> Value:
        return where(exponent < _BIAS - s, u32(0), 2 * _BIAS + 1 - (exponent << 1) + negative)

    def from_fields(self, levels: Value, bucket: Value, norms: Value, codes: Value) -> Value:
        place = codes - 1  # for code 0, this is greater than any other place
        magnitude = norms * from_bits(_BIAS - (place >> 1) << 23)
        signed = from_bits(bits(magnitude) ^ (place << 31))
        return where(place < 2 * levels + 2, signed, 0.0)


def _power(exponent: Value) -> Value:
    """Return 2 to the power of `exponent`, an int32, as a normal float32."""
    return from_bits(u32(exponent + _BIAS) << 23)
