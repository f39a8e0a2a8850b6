"""natural."""

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
_BIAS, _FRACTION, _NORMAL = 127, 0x7FFFFF, 1 << 23  # of a float32's exponent; the bits after it; 2^-126
_FURTHER = 149  # added to the bias: numbers below 2^-126 have exponents of their own


class NaturalRows(Known):
    """natural: the exponent of |v| is the code, its mantissa the way to the next one.

    The exponent and 16 bits of the mantissa are one integer, which rounding at random carries over. Where values lie below
    2^-126, these keep their value with an exponent of more bits; those below the least of 255 exponents go to it or to 0.
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
        """The code of 0 or of a number that is not below 2^-126, when all are of 255 exponents."""
        magnitude = bits(v) & MAGNITUDE
        rounded = settle((magnitude >> 7) + random16(), _way(magnitude))
        return where(magnitude == 0, u32(0), _code(t + _BIAS - rounded, v))

    def _far(self, v: Value, t: Value, exponents: Value) -> Value:
        """The code of any number."""
        magnitude = bits(v) & MAGNITUDE
        widened, highest = _widened(magnitude), t + (_BIAS + _FURTHER)  # the exponent of the largest power of two
        lowest = highest - exponents + 1 << 16
        is_above = widened >> 7 >= lowest
        unit = where(exponents == MAX_EXPONENTS, from_bits((MAX_EXPONENTS - 1 + 16 - _FURTHER + _BIAS - t) << 23), 0.0)
        below = minimum(f32(i32(magnitude)) * unit, 65536.0)
        start = where(is_above, widened >> 7, u32(i32(below)) + lowest - (1 << 16))
        rounded = settle(start + random16(), where(is_above, _way(widened), below))
        return where(rounded << 16 < lowest, u32(0), _code(highest - rounded, v))

    def from_fields(self, ends: Value, codes: Value) -> Value:
        t, exponents = _read(ends)
        place = codes - 1  # of 0: beyond all others
        steps, sign = place >> 1, place << 31
        is_normal = (i32(t) <= _BIAS) & (i32(t - exponents) >= -_BIAS)
        near = from_bits((t + _BIAS - steps << 23) | sign)
        far = from_bits(bits(_power(t + (_BIAS + _FURTHER) - steps)) | sign)
        return where(is_normal, where(steps < exponents, near, 0.0), where(steps < exponents, far, 0.0))


def _widened(magnitude: Value) -> Value:
    """The bits of a float32, as those of 2^149 times the number, with an exponent of more bits; of 0 they are 0."""
    return where(magnitude < _NORMAL, bits(f32(i32(magnitude))), magnitude + (_FURTHER << 23))


def _way(number: Value) -> Value:
    """The mantissa of bits of a float32: the way to the next power of two, times 2^16."""
    return f32(i32(number & _FRACTION)) * 2.0**-7


def _code(steps: Value, v: Value) -> Value:
    """The code of a power of two `steps` steps below the largest, with the sign of `v`."""
    return (steps << 1) + 1 + (bits(v) >> 31)


def _power(exponent: Value) -> Value:
    """The power of two with a widened exponent; the largest float32 for 2^128."""
    small = from_bits(exponent - (_FURTHER - 64) << 23) * 2.0**-64
    other = where(exponent > _FURTHER + 2 * _BIAS, LARGEST, from_bits(exponent - _FURTHER << 23))
    return where(exponent <= _FURTHER, small, other)


def _read(ends: Value) -> tuple[Value, Value]:
    """The exponent of the largest power of two, modulo 2^32, and how many there are."""
    return u32(i32(ends << 16) >> 16), ends >> 16


def _width(ends: Value) -> Value:
    """The bits of the largest code, twice as many as there are exponents."""
    exponents = ends >> 16
    return where(exponents == 0, u32(0), (bits(f32(i32(exponents))) >> 23) - (_BIAS - 2))
