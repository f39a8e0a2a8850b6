"""Formula of natural compression (codec natural): every value is rounded to a power of two."""

from __future__ import annotations

from psnode.codecs.kernels.bitmasks import MAGNITUDE
from psnode.codecs.rows.formula import Fields
from psnode.codecs.rows.known.base import Known
from psnode.codecs.rows.language import (
    LARGEST,
    bits,
    f32,
    from_bits,
    i32,
    largest_of_all,
    least_magnitude_of_all,
    minimum,
    random16,
    settle,
    u32,
    where,
)
from psnode.codecs.rows.packings import planes
from psnode.codecs.rows.values import Value

MAX_EXPONENTS = 255
_BIAS, _FRACTION, _NORMAL = 127, 0x7FFFFF, 1 << 23  # bias of the exponent, bits of the mantissa, bits of 2^-126
_FURTHER = 149  # widens an exponent for numbers below 2^-126


class NaturalRows(Known):
    """natural: every value is rounded at random, without bias, to a power of two.

    The code of a zero is 0. Any other code is 1 + 2 x (the exponent's distance from the largest exponent) + the sign bit. For
    rounding, the exponent and the top 16 bits of the mantissa are treated as one integer. Adding 16 random bits carries into
    the exponent with the right probability. If any nonzero magnitude is below 2^-126, all exponents are widened, so that
    subnormal numbers are represented too. At most 255 exponents are kept. Values smaller than the least power of two that is
    kept are rounded at random to this power or to 0.
    """

    def to_fields(self, v: Value) -> Fields:
        most, least = bits(largest_of_all(v)), bits(least_magnitude_of_all(v))
        top = (_widened(most) + _FRACTION) >> 23
        exponents = where(most == 0, u32(0), minimum(top - (_widened(least) >> 23) + 1, u32(MAX_EXPONENTS)))
        t = where(most == 0, u32(0), top - (_BIAS + _FURTHER))
        ends = (t & 0xFFFF) | (exponents << 16)
        q = where(least < _NORMAL, self._far(v, *_read(ends)), self._near(v, _read(ends)[0]))
        return Fields(ends=ends, codes=planes(q, _width(ends), most=(2 * MAX_EXPONENTS).bit_length()))

    def _near(self, v: Value, t: Value) -> Value:
        """Return the code of 0 or of a normal number.

        It is used if only zeros are below 2^-126; at most 255 exponents are then possible.
        """
        magnitude = bits(v) & MAGNITUDE
        rounded = settle((magnitude >> 7) + random16(), _way(magnitude))
        return where(magnitude == 0, u32(0), _code(t + _BIAS - rounded, v))

    def _far(self, v: Value, t: Value, exponents: Value) -> Value:
        """Return the code of any number, computed with widened exponents."""
        magnitude = bits(v) & MAGNITUDE
        widened, highest = _widened(magnitude), t + (_BIAS + _FURTHER)  # widened exponent of the largest power of two
        lowest = highest - exponents + 1 << 16
        is_above = widened >> 7 >= lowest
        unit = where(exponents == MAX_EXPONENTS, from_bits((MAX_EXPONENTS - 1 + 16 - _FURTHER + _BIAS - t) << 23), 0.0)
        below = minimum(f32(i32(magnitude)) * unit, 65536.0)
        start = where(is_above, widened >> 7, u32(i32(below)) + lowest - (1 << 16))
        rounded = settle(start + random16(), where(is_above, _way(widened), below))
        return where(rounded << 16 < lowest, u32(0), _code(highest - rounded, v))

    def from_fields(self, ends: Value, codes: Value) -> Value:
        t, exponents = _read(ends)
        place = codes - 1  # for code 0, this is greater than any other place
        steps, sign = place >> 1, place << 31
        is_normal = (i32(t) <= _BIAS) & (i32(t - exponents) >= -_BIAS)
        near = from_bits((t + _BIAS - steps << 23) | sign)
        far = from_bits(bits(_power(t + (_BIAS + _FURTHER) - steps)) | sign)
        return where(is_normal, where(steps < exponents, near, 0.0), where(steps < exponents, far, 0.0))


def _widened(magnitude: Value) -> Value:
    """Return the bits of 2^149 times the float32 with the bits `magnitude`, in a format with a wider exponent. Return 0 for 0."""
    return where(magnitude < _NORMAL, bits(f32(i32(magnitude))), magnitude + (_FURTHER << 23))


def _way(number: Value) -> Value:
    """Return 2^16 times the fraction f of a float32 2^e (1 + f), given by its bits."""
    return f32(i32(number & _FRACTION)) * 2.0**-7


def _code(steps: Value, v: Value) -> Value:
    """Return the code of the power of two `steps` steps below the largest one, with the sign of `v`."""
    return (steps << 1) + 1 + (bits(v) >> 31)


def _power(exponent: Value) -> Value:
    """Return the power of two with the widened exponent `exponent`. For 2^128, return the largest float32 instead."""
    small = from_bits(exponent - (_FURTHER - 64) << 23) * 2.0**-64
    other = where(exponent > _FURTHER + 2 * _BIAS, LARGEST, from_bits(exponent - _FURTHER << 23))
    return where(exponent <= _FURTHER, small, other)


def _read(ends: Value) -> tuple[Value, Value]:
    """Return the exponent of the largest power of two, modulo 2^32, and the number of exponents."""
    return u32(i32(ends << 16) >> 16), ends >> 16


def _width(ends: Value) -> Value:
    """Return the number of bits of the largest code. This code is twice the number of exponents."""
    exponents = ends >> 16
    return where(exponents == 0, u32(0), (bits(f32(i32(exponents))) >> 23) - (_BIAS - 2))
