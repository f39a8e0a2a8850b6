"""Sign: every coordinate decodes to its sign, +1 or -1, in one bit. The learning rate sets the magnitude.

    body   1 bit per coordinate, 1 if negative: bit i mod 8 of byte i // 8; zeros to a whole byte

The sign of a zero is drawn at random, with probability 1/2 for each sign, so that a zero moves in neither direction on average.

The codec is biased and not a contraction. In feedback loops it is replaced by the codec scaledsign, which decodes to the
multiple of the signs with the least error.

Source: Bernstein, Wang, Azizzadenesheli, Anandkumar, "signSGD: Compressed Optimisation for Non-Convex Problems", ICML 2018.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from psnode.codecs.base import NOTHING, Bytes, Codes, Floats, Measured, Shape, Words, readonly
from psnode.codecs.rows.codec import Generated, coder_of
from psnode.codecs.rows.coder import Coder
from psnode.codecs.rows.formula import Formula
from psnode.codecs.rows.known.sign import SignRows
from psnode.codecs.scaledsign import ScaledSign
from psnode.codecs.sources import Values
from psnode.codecs.stages import Quantiser, Symbols
from psnode.codecs.traits import Traits
from psnode.errors import PayloadError


@dataclass(frozen=True, repr=False)
class Sign(Generated, Quantiser):
    """sign: decodes to 1 or -1. A zero, 0.0 or -0.0, decodes to each of the two with probability 1/2.

    >>> from psnode.codecs import get_codec
    >>> codec, x = get_codec("sign"), np.array([1, -2, 3, -4], np.float32)
    >>> codec.decode(codec.encode(x, np.random.default_rng(1))).tolist()
    [1.0, -1.0, 1.0, -1.0]
    """

    id = "sign"
    traits = Traits(votes=True)

    def contractive(self) -> ScaledSign:
        """Return scaledsign, because ||x - c sign(x)|| is least if c is the mean of |x|."""
        return ScaledSign()

    def formula(self) -> Formula:
        """Return the formula from which the codec's kernels are generated: SignRows."""
        return SignRows(self)

    def _read(self, body: Bytes, size: int) -> tuple[Coder, Bytes]:
        coder = coder_of(self)
        coder.check(body, size)
        return coder, body

    def _measure(self, body: Bytes, shape: Shape, room: Floats | None) -> Measured:
        """Return the norm, which follows from the size, because every decoded magnitude is 1."""
        size = math.prod(shape)
        self._read(body, size)
        return Measured(math.sqrt(size), lambda out, weight: self._decode_add(body, out, weight))

    def _max_symbols(self, size: int) -> tuple[int, int, int]:
        return 0, size, 2

    def _symbols(self, x: Floats, key: Words) -> Symbols:
        body = np.empty(self._max_body(x.shape), np.uint8)
        self._encode(Values(x), key, body, NOTHING)
        return Symbols(body[:0], np.unpackbits(body, count=x.size, bitorder="little"), 2)

    def _read_side(self, side: Bytes, size: int) -> tuple[int, int]:
        if side.size:
            raise PayloadError(f"sign: {side.size} bytes of side information where none belong")
        return size, 2

    def _from_symbols(self, side: Bytes, codes: Codes, out: Floats) -> None:
        self._decode(readonly(np.packbits(codes, bitorder="little")), out)
