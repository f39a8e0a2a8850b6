"""Sign: +1 or -1 a coordinate, one bit. The magnitude is left to the learning rate.

    body   signs: see psnode.codecs.binary

Biased, and no contraction: in a feedback loop its form is scaledsign, its multiple of least error.

Source: Bernstein, Wang, Azizzadenesheli, Anandkumar, "signSGD: Compressed Optimisation for Non-Convex Problems", ICML 2018.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from psnode.codecs.arrays import Bytes, Floats, Words
from psnode.codecs.binary import Binary, Signed
from psnode.codecs.kernels.parts import PartTable
from psnode.codecs.kernels.sign import signs
from psnode.codecs.scaledsign import ScaledSign
from psnode.codecs.table import number_of
from psnode.codecs.traits import Traits


@dataclass(frozen=True, repr=False)
class Sign(Binary):
    """sign: decodes to 1 or -1; zeros, -0.0 too, to either with probability 1/2."""

    id = "sign"
    traits = Traits(votes=True)

    def contractive(self) -> ScaledSign:
        """scaledsign: ||x - c sign(x)|| is least for c the mean of |x|."""
        return ScaledSign()

    def _side_nbytes(self, size: int) -> int:
        return 0

    def _sign(self, x: Floats, parts: PartTable, key: Words, side: Bytes, bits: Bytes, error: Floats) -> Signed:
        return Signed(signs(x, parts, key, number_of(self.id), bits, error))

    def _split(self, body: Bytes, size: int) -> int:
        return 0

    def _levels(self, side: Bytes, size: int) -> tuple[int, Floats, Floats]:
        return size, np.full(1, -1, np.float32), np.full(1, 1, np.float32)
