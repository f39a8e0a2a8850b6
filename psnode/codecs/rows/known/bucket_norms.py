"""The range of norms that float32 arithmetic can divide by."""

from __future__ import annotations

from psnode.codecs.rows.values import Value

_LOW, _HIGH = 2.0**-50, 2.0**50


def ordinary(norm: Value) -> Value:
    """Return True for a norm in 2^-50 to 2^50, for which 2^16 levels / norm is a normal float32."""
    return (norm >= _LOW) & (norm <= _HIGH)
