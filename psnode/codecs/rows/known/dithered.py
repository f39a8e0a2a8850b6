"""Formula of the codec dithered, used without an entropy stage."""

from __future__ import annotations

from psnode.codecs.rows.formula import Fields
from psnode.codecs.rows.known.base import Known
from psnode.codecs.rows.known.bucket_norms import ordinary
from psnode.codecs.rows.language import (
    LARGEST,
    ROW,
    bits,
    clip,
    f32,
    f64,
    floor,
    from_bits,
    i32,
    key_word,
    l2_norm_of_bucket,
    maximum,
    parameter,
    place_in_row,
    random16,
    settle,
    size_of_bucket,
    sqrt,
    u32,
    where,
)
from psnode.codecs.rows.packings import fitted
from psnode.codecs.rows.values import Value

_UNIT = 65536.0
_TINIEST = 2.0**-149
_QUARTER = 128  # a quarter of a row; the dithers of coordinates j, 128 + j, 256 + j and 384 + j share two random bits


class DitheredRows(Known):
    """dithered: coordinates are rounded, with a dither, in units of delta = step times their bucket's root mean square.

    The arithmetic is in units of 2^-16 delta. The rounded integer q has less than 15 bits, so that 2^16 q fits into an int32.
    If delta is outside 2^-50 to 2^50, the division by delta is done in float64. The step is a parameter of the program.
    """

    def to_fields(self, v: Value) -> Fields:
        rows = self.codec.bucket // ROW
        rms = _root_mean_square(l2_norm_of_bucket(v, rows), size_of_bucket(rows))
        step = parameter(f32(self.codec.step))
        delta, dither = _delta(step, rms), _dither()
        near, far = v * f32(_UNIT / delta), f64(v) * (_UNIT / delta)
        q = [settle(u32(i32(floor(units))) + dither, units) for units in (near, far)]
        codes = where(delta == 0, u32(0), where(ordinary(delta), *(_code(each, dither) for each in q)))
        return Fields(
            step=step,
            bucket=u32(self.codec.bucket),
            **{f"key{number}": key_word(number) for number in range(4)},
            rms=rms,
            codes=fitted(codes, rows, self.codec.most_bits),
        )

    def from_fields(
        self, step: Value, bucket: Value, key0: Value, key1: Value, key2: Value, key3: Value, rms: Value, codes: Value
    ) -> Value:
        delta, dither = _delta(step, rms), _dither()
        whole = i32((_integer(codes, dither) << 16) + (32768 - dither))
        near = (f32(whole) - 0.5) * f32(delta / _UNIT)
        far = f32(clip((f64(whole) - 0.5) * (delta / _UNIT), -LARGEST, LARGEST))
        return where(delta == 0, 0.0, where(ordinary(delta), near, far))


def _delta(step: Value, rms: Value) -> Value:
    return f64(step) * f64(rms)


def _root_mean_square(norm: Value, size: Value) -> Value:
    """Return the root mean square of a bucket, rounded up so that only a norm of 0 gives 0."""
    exact = maximum(norm / sqrt(f64(size)), _TINIEST)
    nearest = f32(exact)
    return where(norm == 0, 0.0, where(f64(nearest) >= exact, nearest, from_bits(bits(nearest) + 1)))


def _dither() -> Value:
    """Return the dither k, 0 to 2^16 - 1.

    It consists of random bits, but bits 13 and 14 of the magnitude are replaced by the number of the quarter in which |u| lies.
    """
    half = random16()
    quarter = (place_in_row() >> 7) ^ ((random16(_QUARTER) >> 13) & 3)
    return ((half & 0x1FFF) | (quarter << 13)) ^ ((half >> 15) + 0x7FFF)


def _code(rounded: Value, dither: Value) -> Value:
    """Return the code of a rounded integer, given the dither.

    0 has the code 0. The neighbour of 0 that the dither favours has the code 1, the other neighbour has the code 2, and so on.
    """
    flip = i32(-_sign(dither))
    signed = (i32(rounded << 16) >> 16 ^ flip) - flip
    return u32(signed << 1 ^ signed >> 31)


def _integer(code: Value, dither: Value) -> Value:
    """Return the integer, modulo 2^32, that has a code under the dither. This is the inverse of _code."""
    flip = -_sign(dither)
    return ((code >> 1 ^ -(code & 1)) ^ flip) - flip


def _sign(dither: Value) -> Value:
    return dither >> 15
