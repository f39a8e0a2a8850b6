"""The range of norms by which float32 arithmetic can divide."""

from __future__ import annotations

from psnode.codecs.rows.values import Value

_LOW, _HIGH = 2.0**-50, 2.0**50


def ordinary(norm: Value) -> Value:
    """Return True if `norm` is in 2^-50 to 2^50. Then 2^16 levels / norm is a normal float32."""
    return (norm >= _LOW) & (norm <= _HIGH)
