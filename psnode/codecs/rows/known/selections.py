"""topk, threshold and graddrop: their kernels are the same."""

from __future__ import annotations

from psnode.codecs.rows.language import bits
from psnode.codecs.rows.values import Value

MAGNITUDE = 0x7FFFFFFF  # a float32's bits but for its sign, in the order of its magnitude


class MagnitudeRanks:
    """The magnitude decides; zeros are never sent."""

    id = "magnitude"

    def rank(self, v: Value) -> Value:
        """As Ranking.rank."""
        return bits(v) & MAGNITUDE
