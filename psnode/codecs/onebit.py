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

from psnode.codecs.arrays import Bytes, Floats, Words
from psnode.codecs.binary import Binary, Signed
from psnode.codecs.kernels.parts import PartTable
from psnode.codecs.kernels.sign import signs_and_sums
from psnode.codecs.table import number_of
from psnode.codecs.traits import Traits
from psnode.errors import PayloadError

_SIDE = 8
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, repr=False)
class OneBit(Binary):
    """onebit: two means a segment, one bit a coordinate."""

    id = "onebit"
    traits = Traits(one_scale=True)

    def _side_nbytes(self, size: int) -> int:
        return _SIDE

    def _sign(self, x: Floats, parts: PartTable, key: Words, side: Bytes, bits: Bytes, error: Floats) -> Signed:
        sums = np.zeros(2)
        negatives = signs_and_sums(x, parts, key, number_of(self.id), bits, sums)
        if negatives < 0:
            return Signed(0, later=True)
        positive, negative = sums.tolist()
        high = min(positive / max(x.size - negatives, 1), _LARGEST)
        low = min(negative / max(negatives, 1), _LARGEST)
        side.view(np.float32)[:] = -low, high
        return Signed(x.size, later=True)

    def _split(self, body: Bytes, size: int) -> int:
        return _SIDE

    def _levels(self, side: Bytes, size: int) -> tuple[int, Floats, Floats]:
        means = side.view(np.float32)
        low, high = float(means[0]), float(means[1])
        if not -_LARGEST <= low <= 0 <= high <= _LARGEST:
            raise PayloadError(f"onebit: {low:g} and {high:g} are no means of negative and of positive numbers")
        return size, means[:1].copy(), means[1:].copy()
