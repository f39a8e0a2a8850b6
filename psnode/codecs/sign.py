"""Sign: +1 or -1 a coordinate, one bit. The magnitude is left to the learning rate.

    body   signs: see psnode.codecs.binary

Biased, and no contraction: in a feedback loop its form is scaledsign, its multiple of least error.

Source: Bernstein, Wang, Azizzadenesheli, Anandkumar, "signSGD: Compressed Optimisation for Non-Convex Problems", ICML 2018.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from psnode.codecs.base import Bytes, Floats, Words, readonly
from psnode.codecs.binary import NO_FLOATS, Binary
from psnode.codecs.kernels.finite import raise_nonfinite
from psnode.codecs.kernels.sign import signs_and_magnitudes
from psnode.codecs.scaledsign import ScaledSign
from psnode.codecs.table import number_of


@dataclass(frozen=True, repr=False)
class Sign(Binary):
    """sign: decodes to 1 or -1; zeros, -0.0 too, to either with probability 1/2."""

    id = "sign"

    def contractive(self) -> ScaledSign:
        """scaledsign: ||x - c sign(x)|| is least for c the mean of |x|."""
        return ScaledSign()

    def _side_nbytes(self, size: int) -> int:
        return 0

    def _sign(self, x: Floats, key: Words, side: Bytes, bits: Bytes, addend: Floats, total: Floats) -> None:
        self._pack(x, addend, total, key, bits, NO_FLOATS)

    def _encode_error(self, x: Floats, key: Words, body: Bytes, error: Floats) -> int:
        used = self._max_body(x.shape)
        self._pack(x.reshape(-1), readonly(NO_FLOATS), NO_FLOATS, key, body[:used], error.reshape(-1))
        return used

    def _pack(self, x: Floats, addend: Floats, total: Floats, key: Words, bits: Bytes, error: Floats) -> None:
        magnitude = np.zeros(1)
        signs_and_magnitudes(x, addend, total, x.size, key, number_of(self.id), bits, magnitude, error)
        if not np.isfinite(magnitude[0]) and not np.isfinite(x).all():
            raise_nonfinite(x)

    def _split(self, body: Bytes, size: int) -> int:
        return 0

    def _levels(self, side: Bytes, size: int) -> tuple[int, Floats, Floats]:
        return size, np.full(1, -1, np.float32), np.full(1, 1, np.float32)
