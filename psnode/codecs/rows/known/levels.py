"""Factors for quantisation in equal steps."""

from __future__ import annotations

from psnode.codecs.rows.language import bits, f32, f64, from_bits, where
from psnode.codecs.rows.values import Value


def factor(span: Value, steps: int) -> Value:
    """Return 2^16 steps / span as a float32, rounded so that span times the result is at most 2^16 steps. A span of 0 gives 0."""
    end = steps * 65536.0
    nearest = f32(end / f64(span))
    return where(span == 0, 0.0, where(span * nearest > end, below_by_one(nearest), nearest))


def below_by_one(x: Value) -> Value:
    """Return the next float32 below the positive float32 `x`."""
    return from_bits(bits(x) - 1)
