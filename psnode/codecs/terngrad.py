"""TernGrad: -s, 0 or s a coordinate, at random and without bias, s the largest magnitude.

A value v keeps its sign with probability |v| / s and decodes to s sign(v), else to 0: E decode = v, and
E||decode - v||^2 = s ||v||_1 - ||v||^2, which is the largest magnitude that matters: without outliers, omega is about 3.
Cut off at 2.5 standard deviations, as the paper trains, it is biased and omega falls below 1.

    body   float32 s, not negative
           digits 0 (-s), 1 (0), 2 (s), five to a byte: see psnode.codecs.kernels.trits

Five digits to a byte instead of four save a fifth of the traffic, cost no time that a link would notice (unpacking is three
times as fast as adding unpacked values), and are within 1 % of log2(3) bits. `terngrad+ans` goes below that.

Source: Wen, Xu, Yan, Wu, Wang, Chen, Li, "TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep Learning",
NIPS 2017.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from psnode.codecs.base import NOTHING, Bytes, Codec, Codes, Floats, Measured, Shape, Sink, Source, Words
from psnode.codecs.bounds import check_real
from psnode.codecs.contractive import Contractive
from psnode.codecs.kernels import ternary as kernels
from psnode.codecs.kernels.dots import NOTHING_LOST, Lost, folded
from psnode.codecs.kernels.finite import INFINITY_BITS, raise_nonfinite
from psnode.codecs.kernels.moments import root_mean_square
from psnode.codecs.kernels.norms import NOT_FINITE
from psnode.codecs.kernels.parts import NO_PARTS, PartTable, reached
from psnode.codecs.kernels.stochastic import factor_of
from psnode.codecs.kernels.sums import max_of_sum
from psnode.codecs.kernels.ternary import Digits, Scale
from psnode.codecs.kernels.trits import DIGITS
from psnode.codecs.rng import Draws
from psnode.codecs.sinks import InnerProducts
from psnode.codecs.sources import leaves_error, operands
from psnode.codecs.stages import Quantiser, Symbols
from psnode.codecs.table import number_of
from psnode.codecs.traits import Traits
from psnode.errors import PayloadError

_SIDE = 4
_MAX_CLIP = 1000
_SMALL = 2.0**-64
_NO_BYTES = np.empty(0, np.uint8)


@dataclass(frozen=True, repr=False)
class TernGrad(Quantiser):
    """terngrad:clip=0. `clip`: cut values off at that many standard deviations, taken about zero; 0: never."""

    clip: float = 0.0

    id = "terngrad"

    def __post_init__(self) -> None:
        """CodecSpecError for a clip out of bounds."""
        check_real(self, "clip", 0, _MAX_CLIP)

    @property
    def traits(self) -> Traits:
        """Unbiased if nothing is cut off."""
        return Traits(one_scale=True, unbiased=not self.clip)

    def contractive(self) -> Codec:
        """The multiple of least error, also if biased: cut off, the error is hardly below ||x||^2."""
        return Contractive(self)

    def _max_body(self, shape: Shape) -> int:
        return _SIDE + -(-math.prod(shape) // DIGITS)

    def _fuses(self, source: Source, sink: Sink) -> bool:
        return sink is NOTHING or isinstance(sink, InnerProducts) or leaves_error(source, sink)

    def _encode(self, source: Source, key: Words, body: Bytes, sink: Sink) -> int:
        parts = source.table()
        x, error = operands(source, sink)
        used, lost = self._max_body(x.shape), Lost(error, sink.dots(x.size))
        if not self._quantise(x, parts, key, body[:_SIDE], Digits(body[_SIDE:used], _NO_BYTES), lost):
            source.refuse(reached(parts))
        if isinstance(sink, InnerProducts):
            sink.record(*folded(lost.dots))
        return used

    def _quantise(self, x: Floats, parts: PartTable, key: Words, side: Bytes, digits: Digits, lost: Lost) -> bool:
        """Write s to `side`, and the digits; False if `x`, to whose memory `parts` are added beforehand, is not finite."""
        top = max_of_sum(x, parts)
        if top == NOT_FINITE:
            return False
        scale = np.float32(top)
        if self.clip:
            scale = np.float32(min(self.clip * root_mean_square(x), top))
        side.view(np.float32)[0] = scale
        up = np.float32(2.0**64 if scale < _SMALL else 1)
        grid = Scale(scale, up, factor_of(scale * up, 1), bool(scale < top))
        kernels.encode(x, grid, Draws(key, number_of(self.id)), digits, lost)
        return True

    def _decode(self, body: Bytes, out: Floats) -> None:
        kernels.decode(*self._read(body, out.size), out.reshape(-1), False)

    def _decode_add(self, body: Bytes, out: Floats, weight: np.float32) -> None:
        digits, scale = self._read(body, out.size)
        kernels.decode(digits, np.float32(weight * scale), out.reshape(-1), True)

    def _measure(self, body: Bytes, shape: Shape, room: Floats | None) -> Measured:
        """From s, as if nothing were zero."""
        size = math.prod(shape)
        scale = float(self._read(body, size)[1])
        return Measured(scale * math.sqrt(size), lambda out, weight: self._decode_add(body, out, weight))

    def _read(self, body: Bytes, size: int) -> tuple[Bytes, np.float32]:
        """Digits and scale of a body that is valid."""
        scale, digits = _scale(body[:_SIDE]), body[_SIDE:]
        if not kernels.is_valid(digits, size):
            raise PayloadError(f"terngrad: {digits.size} bytes that are not {size} digits, five to a byte")
        return digits, scale

    def _max_symbols(self, size: int) -> tuple[int, int, int]:
        return _SIDE, size, 3

    def _symbols(self, x: Floats, key: Words) -> Symbols:
        side, codes = np.empty(_SIDE, np.uint8), np.empty(x.size, np.uint8)
        if not self._quantise(x, NO_PARTS, key, side, Digits(_NO_BYTES, codes), NOTHING_LOST):
            raise_nonfinite(x)
        return Symbols(side, codes, 3)

    def _read_side(self, side: Bytes, size: int) -> tuple[int, int]:
        _scale(side)
        return size, 3

    def _from_symbols(self, side: Bytes, codes: Codes, out: Floats) -> None:
        kernels.write(np.asarray(codes, np.uint8), _scale(side), out)


def _scale(side: Bytes) -> np.float32:
    if side.size != _SIDE or int(side.view(np.uint32)[0]) >= INFINITY_BITS:
        raise PayloadError("terngrad: the scale is missing, negative or not finite")
    return np.float32(side.view(np.float32)[0])
