"""Numbers of even steps."""

from __future__ import annotations

from psnode.codecs.rows.language import bits, f32, f64, from_bits, where
from psnode.codecs.rows.values import Value


def factor(span: Value, steps: int) -> Value:
    """2^16 steps / span in float32, or the next number below where span times that is more than 2^16 steps; 0 for 0."""
    end = steps * 65536.0
    nearest = f32(end / f64(span))
    return where(span == 0, 0.0, where(span * nearest > end, below_by_one(nearest), nearest))


def below_by_one(x: Value) -> Value:
    """The next float32 towards 0 of a positive one."""
    return from_bits(bits(x) - 1)
