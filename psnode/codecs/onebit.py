"""1-bit SGD: a coordinate decodes to the mean of those that have its sign.

The two means, of P coordinates with sum s > 0 and of N with sum -t < 0, are the values with the least squared error for these
signs: ||x - y||^2 = ||x||^2 - s^2 / P - t^2 / N, and sum y = sum x. A zero counts in the class that its coin gave it.
Biased (a zero decodes to the middle of the two means on average): for error feedback.

    body   float32 mean of the negative coordinates, float32 mean of the others; 0 for no coordinates
           signs: see psnode.codecs.binary

Source: Seide, Fu, Droppo, Li, Yu, "1-Bit Stochastic Gradient Descent and its Application to Data-Parallel Distributed Training
of Speech DNNs", Interspeech 2014. There every column of a matrix has its means, here every segment.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from psnode.codecs.arrays import Bytes
from psnode.codecs.binary import Binary, Levels
from psnode.codecs.rows.formula import Formula
from psnode.codecs.rows.known.signs import OneBitRows
from psnode.codecs.traits import Traits
from psnode.errors import PayloadError

_SIDE = 8
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, repr=False)
class OneBit(Binary):
    """onebit: two means a segment, one bit a coordinate.

    The mean of the coordinates of each sign:

    >>> from psnode.codecs import get_codec
    >>> codec, x = get_codec("onebit"), np.array([1, -2, 3, -4], np.float32)
    >>> codec.decode(codec.encode(x, np.random.default_rng(1))).tolist()
    [2.0, -3.0, 2.0, -3.0]
    """

    id = "onebit"
    traits = Traits(one_scale=True)

    def _side_nbytes(self, size: int) -> int:
        return _SIDE

    def formula(self) -> Formula:
        """Return OneBitRows."""
        return OneBitRows(self)

    def check_fields(self, body: Bytes) -> None:
        """Raise PayloadError unless `body` begins with means."""
        self._levels(body[:_SIDE], 1)

    def _split(self, body: Bytes, size: int) -> int:
        return _SIDE

    def _levels(self, side: Bytes, size: int) -> Levels:
        if side.size != _SIDE:
            raise PayloadError(f"onebit: {side.size} bytes in the place of two means")
        means = side.view(np.float32)
        low, high = float(means[0]), float(means[1])
        if not -_LARGEST <= low <= 0 <= high <= _LARGEST:
            raise PayloadError(f"onebit: {low:g} and {high:g} are no means of negative and of positive numbers")
        return Levels(size, means[:1].copy(), means[1:].copy())
