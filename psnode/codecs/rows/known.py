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
    bits,
    clip,
    f32,
    f64,
    floor,
    from_bits,
    i32,
    l2_norm,
    largest,
    minimum,
    random16,
    settle,
    u32,
    where,
)
from psnode.codecs.rows.packings import halves, planes
from psnode.codecs.rows.values import Value
from psnode.codecs.table import number_of

_LOW, _HIGH = 2.0**-50, 2.0**50
_REBIASED = 112 << 23  # between the exponents of binary16 and binary32


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


def _ordinary(norm: Value) -> Value:
    return (norm >= _LOW) & (norm <= _HIGH)


_KNOWN: dict[str, type[Known]] = {
    "bf16": Bf16Rows,
    "fp16": Fp16Rows,
    "qsgd": QsgdRows,
}


def formula_of(codec: Codec) -> Formula | None:
    """The formula of a codec of psnode's, or of one that is a formula; None if there is none at its settings."""
    if isinstance(codec, RowCodec):
        return codec
    cls = _KNOWN.get(codec.id)
    return cls(codec) if cls is not None and cls.expresses(codec) else None
