"""Your own codec: every value in one byte, on a logarithmic scale.

    psnode train --local 2 --codec examples/codec.py:Logarithmic --feedback ef --max-steps 100
    psnode bench codecs --codec examples/codec.py:Logarithmic:octaves=8
    psnode.codecs.get_codec("examples/codec.py:Logarithmic")    in Python; or psnode.codecs.register(Logarithmic)

Each magnitude is rounded down to one of the levels m 2^(-k octaves / 127), k = 0..126, where m is the largest magnitude.
Magnitudes below all levels become 0. So no decoded value is larger than the original or has the opposite sign, and error feedback
converges.

    offset  bytes  field
         0      8  m and octaves, float32
         8      n  one byte per coordinate: 127 - k, or 0; plus 128 if the value is negative
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from psnode.codecs import Codec
from psnode.codecs.base import Bytes, Floats, Shape, Sink, Source, Words
from psnode.errors import CodecSpecError, NonFiniteGradientError, PayloadError


@dataclass(frozen=True, repr=False)
class Logarithmic(Codec):
    """A codec that stores every value in one byte. `octaves`: the number of halvings that the 127 levels span."""

    octaves: float = 16.0

    id = "logarithmic"
    number = 192

    def __post_init__(self) -> None:
        if not 1 <= self.octaves <= 100:
            raise CodecSpecError(f"logarithmic: octaves={self.octaves} is not from 1 to 100")

    def _max_body(self, shape: Shape) -> int:
        return 8 + math.prod(shape)

    def _encode(self, source: Source, key: Words, body: Bytes, sink: Sink) -> int:
        x = source.array().reshape(-1)
        magnitudes = np.abs(x)
        head = body[:8].view(np.float32)
        head[:] = magnitudes.max(), self.octaves
        if not np.isfinite(head[0]):
            [first, *_] = np.flatnonzero(~np.isfinite(x))
            raise NonFiniteGradientError(int(first), float(x[first]))
        body[8 : 8 + x.size] = np.searchsorted(_levels(*head), magnitudes, side="right") - 1 + 128 * (x < 0)
        return 8 + x.size

    def _decode(self, body: Bytes, out: Floats) -> None:
        if body.size != 8 + out.size:
            raise PayloadError(f"logarithmic: a body of {body.size} bytes is not that of {out.size} values")
        largest, octaves = body[:8].view(np.float32)
        if not (0 <= largest < np.inf and 1 <= octaves <= 100):
            raise PayloadError(f"logarithmic: {largest} is no magnitude, or {octaves} no number of octaves")
        codes = body[8:].reshape(out.shape)
        np.multiply(_levels(largest, octaves)[codes & 127], np.where(codes < 128, np.float32(1), np.float32(-1)), out=out)


def _levels(largest: np.float32, octaves: np.float32) -> Floats:
    """Return 0 and the 127 levels in ascending order, as float32."""
    exponents = np.arange(-126, 1) * (float(octaves) / 127)
    return np.concatenate([[0.0], float(largest) * 2.0**exponents]).astype(np.float32)
