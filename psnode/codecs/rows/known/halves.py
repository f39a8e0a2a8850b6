"""Formulas of the codecs fp16 and bf16."""

from __future__ import annotations

from psnode.codecs.kernels.bitmasks import MAGNITUDE
from psnode.codecs.rows.formula import Fields
from psnode.codecs.rows.known.base import Known
from psnode.codecs.rows.language import bits, f32, from_bits, minimum, where
from psnode.codecs.rows.packings import halves
from psnode.codecs.rows.values import Value

_REBIASED = 112 << 23  # the difference of the exponent biases of binary32 and binary16, shifted to the exponent's bits


class Bf16Rows(Known):
    """bf16: the upper half of a float32, rounded to nearest even and limited to the largest finite value."""

    def to_fields(self, v: Value) -> Fields:
        kept = minimum(bits(v) & MAGNITUDE, 0x7F7F0000)
        rounded = (kept + 0x7FFF + ((kept >> 16) & 1)) >> 16
        return Fields(codes=halves(rounded | ((bits(v) >> 16) & 0x8000)))

    def from_fields(self, codes: Value) -> Value:
        return from_bits(codes << 16)


class Fp16Rows(Known):
    """fp16: IEEE binary16, rounded to nearest even and limited to the largest finite value.

    Magnitudes below 2^-14 become multiples of 2^-24: adding 1/2 rounds them to such multiples. Other values keep 11 significant
    bits of the float32.
    """

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
