"""Formula of the codecs topk, threshold and graddrop. They share their GPU kernels."""

from __future__ import annotations

from psnode.codecs.rows.language import bits
from psnode.codecs.rows.values import Value

MAGNITUDE = 0x7FFFFFFF  # the bits of a float32 without its sign, which are ordered like magnitudes


class MagnitudeRanks:
    """Formula that ranks coordinates by their magnitudes. Zeros are never sent."""

    id = "magnitude"

    def rank(self, v: Value) -> Value:
        """Return the rank of each coordinate, as Ranking.rank does."""
        return bits(v) & MAGNITUDE
