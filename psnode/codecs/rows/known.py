"""Formulas of psnode's own codecs, which make the same bytes. So these payloads can be made on any processor.

A formula belongs to a codec at its settings; where those are none that rows can do, it is None.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from psnode.codecs.base import Codec
from psnode.codecs.kernels.bitmasks import MAGNITUDE
from psnode.codecs.rows.codec import RowCodec
from psnode.codecs.rows.formula import Fields, Formula
from psnode.codecs.rows.language import (
    LARGEST,
    ROW,
    any_of,
    bits,
    clip,
    coin,
    f32,
    f64,
    floor,
    from_bits,
    greatest_of_all,
    i32,
    l2_norm,
    largest,
    largest_of_all,
    least_of_all,
    minimum,
    random16,
    settle,
    stochastic,
    u32,
    where,
)
from psnode.codecs.rows.packings import halves, planes, signs, trits
from psnode.codecs.rows.values import Value
from psnode.codecs.table import number_of

_LOW, _HIGH = 2.0**-50, 2.0**50
_REBIASED = 112 << 23  # between the exponents of binary16 and binary32
_BIAS, _FRACTION = 127, 0x7FFFFF  # of a float32's exponent, and the bits behind it


class Known(ABC):
    """A formula for a codec of psnode's."""

    may_overflow = False

    def __init__(self, codec: Any) -> None:
        self.codec, self.id, self.number = codec, codec.id, number_of(codec.id)

    @classmethod
    def expresses(cls, codec: Any) -> bool:
        """True if the formula is the codec's at its settings."""
        return True

    @abstractmethod
    def to_fields(self, v: Value) -> Fields:
        """As Formula.to_fields."""

    @abstractmethod
    def from_fields(self, *fields: Any, **named: Any) -> Value:
        """As Formula.from_fields."""


class QsgdRows(Known):
    """qsgd with buckets of 512: norms from 2^-50 to 2^50 in float32, others in float64."""

    def to_fields(self, v: Value) -> Fields:
        s = self.codec.levels
        norm = f32(l2_norm(v)) if self.codec.norm == "l2" else largest(v)
        top = float(s * 2**16)
        near = clip(v * f32(top / f64(norm)), -top, top)
        far = clip(f64(v) * (top / f64(norm)), -top, top)
        zero = random16() + (s << 16)
        q = where(
            norm == 0,
            u32(s),
            where(_ordinary(norm), settle(u32(i32(floor(near))) + zero, near), settle(u32(i32(floor(far))) + zero, far)),
        )
        return Fields(levels=u32(s), bucket=u32(ROW), norms=norm, codes=planes(q, (2 * s).bit_length()))

    def from_fields(self, levels: Value, bucket: Value, norms: Value, codes: Value) -> Value:
        s = self.codec.levels
        q = minimum(i32(codes) - s, s)
        far = f32(clip(f64(q) * f64(norms) / float(s), -LARGEST, LARGEST))
        return where(_ordinary(norms) | (norms == 0), f32(q) * (norms / float(s)), far)

    @classmethod
    def expresses(cls, codec: Any) -> bool:
        return bool(codec.bucket == ROW and not codec.factors)


class Bf16Rows(Known):
    """bf16: the upper half of a float32, rounded to nearest even, at most the largest."""

    def to_fields(self, v: Value) -> Fields:
        kept = minimum(bits(v) & MAGNITUDE, 0x7F7F0000)
        rounded = (kept + 0x7FFF + ((kept >> 16) & 1)) >> 16
        return Fields(codes=halves(rounded | ((bits(v) >> 16) & 0x8000)))

    def from_fields(self, codes: Value) -> Value:
        return from_bits(codes << 16)


class Fp16Rows(Known):
    """fp16: below 2^-14 a multiple of 2^-24, which adding 1/2 rounds to; else 11 bits of the float32, rounded to nearest even."""

    def to_fields(self, v: Value) -> Fields:
        magnitude = bits(v) & MAGNITUDE
        kept = minimum(magnitude, 0x477FE000)
        normal = (kept + 0xFFF + ((kept >> 13) & 1) - _REBIASED) >> 13
        small = bits(abs(v) + 0.5) - 0x3F000000
        return Fields(codes=halves(where(magnitude < 0x38800000, small, normal) | ((bits(v) >> 16) & 0x8000)))

    def from_fields(self, codes: Value) -> Value:
        normal = from_bits((((codes & 0x7FFF) << 13) + _REBIASED) | ((codes & 0x8000) << 16))
        small = f32(codes & 0x3FF) * 2.0**-24
        return where((codes & 0x7C00) != 0, normal, where((codes & 0x8000) != 0, -small, small))


class NuqsgdRows(Known):
    """nuqsgd with buckets of 512: the exponent of |v| / norm is the level, its mantissa the way to the next one.

    The exponent and 16 bits of the mantissa are one integer, which rounding at random carries over: e 2^16 + f is for
    2^(e - 127) (1 + f / 2^16). Norms outside 2^-50 to 2^50 are divided by in float64.
    """

    def to_fields(self, v: Value) -> Fields:
        s = self.codec.levels
        norm = f32(l2_norm(v)) if self.codec.norm == "l2" else largest(v)
        near = self._near(minimum(abs(v) * f32(1 / f64(norm)), 1.0))
        far = self._far(minimum(abs(f64(v)) / f64(norm), 1.0))
        negative = bits(v) >> 31
        q = where(norm == 0, u32(0), where(_ordinary(norm), self._code(near, negative), self._code(far, negative)))
        return Fields(levels=u32(s), bucket=u32(ROW), norms=norm, codes=planes(q, (2 * s + 2).bit_length()))

    def _near(self, r: Value) -> Value:
        """The exponent that `r` (float32, at most 1) is rounded to; one below the least level for 0."""
        s = self.codec.levels
        below = minimum(r, 2.0**-s) * 2.0 ** (s + 16)
        is_above = r >= 2.0**-s
        start = where(is_above, bits(r) >> 7, u32(i32(below)) + (_BIAS - 1 - s << 16))
        return settle(start + random16(), where(is_above, f32(i32(bits(r) & _FRACTION)) * 2.0**-7, below))

    def _far(self, r: Value) -> Value:
        """The same of float64."""
        s = self.codec.levels
        rounded = bits(f32(r)) >> 23
        exponent = where(f64(from_bits(rounded << 23)) > r, rounded - 1, rounded)
        is_above = r >= 2.0**-s
        rest = where(is_above, r * f64(from_bits(2 * _BIAS - exponent << 23)) - 1.0, r * 2.0**s) * 65536.0
        start = where(is_above, exponent, u32(_BIAS - 1 - s)) << 16
        return settle(start + u32(i32(floor(rest))) + random16(), rest)

    def _code(self, exponent: Value, negative: Value) -> Value:
        return where(exponent < _BIAS - self.codec.levels, u32(0), 2 * _BIAS + 1 - (exponent << 1) + negative)

    def from_fields(self, levels: Value, bucket: Value, norms: Value, codes: Value) -> Value:
        place = codes - 1  # of 0: beyond all others
        magnitude = norms * from_bits(_BIAS - (place >> 1) << 23)
        signed = from_bits(bits(magnitude) ^ (place << 31))
        return where(place < 2 * self.codec.levels + 2, signed, 0.0)

    @classmethod
    def expresses(cls, codec: Any) -> bool:
        return bool(codec.bucket == ROW)


class MinMaxRows(Known):
    """minmax: even steps from the least to the greatest value, in units of which float32 has the span and its inverse."""

    def to_fields(self, v: Value) -> Fields:
        steps = 2**self.codec.bits - 1
        least, greatest = least_of_all(v), greatest_of_all(v)
        up = self._up(least, greatest)
        base = least * up
        scaled = (v * up - base) * _factor(greatest * up - base, steps)
        codes = stochastic(clip(scaled, 0.0, steps * 65536.0), 0)  # cuts off nothing but zeros that fill up the last row
        return Fields(width=u32(self.codec.bits), least=least, greatest=greatest, codes=planes(codes, self.codec.bits))

    def from_fields(self, width: Value, least: Value, greatest: Value, codes: Value) -> Value:
        steps, up = 2**self.codec.bits - 1, self._up(least, greatest)
        base, end = least * up, greatest * up
        step = f32((f64(greatest) - f64(least)) * f64(up) / float(steps))
        for _ in range(2):  # rounding the step and its product takes the last value beyond the end by less than two of its units
            step = where(base + step * float(steps) > end, _below(step), step)
        return (base + f32(i32(codes)) * step) * (1.0 / up)

    def _up(self, least: Value, greatest: Value) -> Value:
        span = f64(greatest) - f64(least)
        return where((span > 0) & (span < 2.0**-64), f32(2.0**64), where(span > 2.0**120, f32(0.25), 1.0))


class SignRows(Known):
    """sign: one bit; zeros of either sign toss a coin."""

    def to_fields(self, v: Value) -> Fields:
        return Fields(negative=signs(where(any_of(v == 0), where(v == 0, coin(), v < 0), v < 0)))

    def from_fields(self, negative: Value) -> Value:
        return where(negative, f32(-1.0), 1.0)


class TernGradRows(Known):
    """terngrad without a clip: -s, 0 or s, the largest magnitude of all."""

    def to_fields(self, v: Value) -> Fields:
        scale = largest_of_all(v)
        up = where(scale < 2.0**-64, f32(2.0**64), 1.0)
        return Fields(scale=scale, digits=trits(stochastic(v * up * _factor(scale * up, 1), -1)))

    def from_fields(self, scale: Value, digits: Value) -> Value:
        return f32(i32(digits) - 1) * scale

    @classmethod
    def expresses(cls, codec: Any) -> bool:
        return not codec.clip


def _factor(span: Value, steps: int) -> Value:
    """2^16 steps / span in float32, or the next number below where span times that is more than 2^16 steps; 0 for 0."""
    end = steps * 65536.0
    nearest = f32(end / f64(span))
    return where(span == 0, 0.0, where(span * nearest > end, _below(nearest), nearest))


def _below(x: Value) -> Value:
    """The next float32 towards 0 of a positive one."""
    return from_bits(bits(x) - 1)


def _ordinary(norm: Value) -> Value:
    return (norm >= _LOW) & (norm <= _HIGH)


_KNOWN: dict[str, type[Known]] = {
    "bf16": Bf16Rows,
    "fp16": Fp16Rows,
    "minmax": MinMaxRows,
    "nuqsgd": NuqsgdRows,
    "qsgd": QsgdRows,
    "sign": SignRows,
    "terngrad": TernGradRows,
}


def formula_of(codec: Codec) -> Formula | None:
    """The formula of a codec of psnode's, or of one that is a formula; None if there is none at its settings."""
    if isinstance(codec, RowCodec):
        return codec
    cls = _KNOWN.get(codec.id)
    return cls(codec) if cls is not None and cls.expresses(codec) else None
