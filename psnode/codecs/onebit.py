"""1-bit SGD: every coordinate decodes to the mean of the coordinates with the same sign.

Let P coordinates with sum s be sent as positive, N with sum -t as negative, and let y be the decoded array. For these signs the
two means s / P and -t / N have the least squared error: ||x - y||^2 = ||x||^2 - s^2 / P - t^2 / N, and sum y = sum x. The sign
of a zero is drawn at random, and the zero counts in the mean of this sign. The codec is biased: a value decodes to the mean of
its sign, and the expected decoded value of a zero is the average of the two means. It is meant for error feedback.

    body   float32 mean of the negative coordinates, float32 mean of the others; 0 if there are no such coordinates
           signs: see psnode.codecs.one_bit_base

Source: Seide, Fu, Droppo, Li, Yu, "1-Bit Stochastic Gradient Descent and its Application to Data-Parallel Distributed Training
of Speech DNNs", Interspeech 2014. In the paper there are two means for every column of a matrix. In this codec there are two
for every segment.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from psnode.codecs.arrays import Bytes
from psnode.codecs.one_bit_base import Binary, Levels
from psnode.codecs.rows.formula import Formula
from psnode.codecs.rows.known.signs import OneBitRows
from psnode.codecs.traits import Traits
from psnode.errors import PayloadError

_SIDE = 8
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, repr=False)
class OneBit(Binary):
    """onebit: two means per segment, one bit per coordinate.

    The decoded values are the means of the coordinates of each sign:

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
        """Return the formula from which the codec's kernels are generated: OneBitRows."""
        return OneBitRows(self)

    def check_fields(self, body: Bytes) -> None:
        """Raise PayloadError unless `body` starts with two valid means."""
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
