"""Norms that float32 can divide by."""

from __future__ import annotations

from psnode.codecs.rows.values import Value

_LOW, _HIGH = 2.0**-50, 2.0**50


def ordinary(norm: Value) -> Value:
    """True for norms whose inverse, times 2^16 levels, float32 has with all its bits."""
    return (norm >= _LOW) & (norm <= _HIGH)
