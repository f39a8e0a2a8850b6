"""bfloat16: the upper half of a float32, 16 bits a coordinate, rounded to nearest even.

Keeps 8 significant bits and float32's range; values that would round to infinity become the largest, 0x7F7F.

    body   uint16 a coordinate; infinity and NaN do not occur
"""

from __future__ import annotations

from dataclasses import dataclass

from psnode.codecs.half_precision import HalfPrecision
from psnode.codecs.rows.formula import Formula
from psnode.codecs.rows.known.halves import Bf16Rows


@dataclass(frozen=True, repr=False)
class Bf16(HalfPrecision):
    """bf16, without parameters."""

    id = "bf16"
    limit = 0x7F80

    def formula(self) -> Formula:
        """Bf16Rows."""
        return Bf16Rows(self)
