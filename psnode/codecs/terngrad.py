"""TernGrad: every coordinate is rounded at random, without bias, to -s, 0 or s, where s is the largest magnitude.

A value v decodes to s sign(v) with probability |v| / s, otherwise to 0. E decode = v, and E||decode - v||^2 = s ||v||_1 -
||v||^2 grows with the largest magnitude s. Let omega be the ratio of this error to ||v||^2. Without outliers, omega is about
3. If values are clipped at 2.5 standard deviations, as in the paper, the codec is biased and omega falls below 1.

    body   float32 s, not negative
           digits 0 (-s), 1 (0), 2 (s), five to a byte: see psnode.codecs.kernels.trits

Packing five digits into a byte instead of four saves a fifth of the traffic and costs little time: unpacking is three times as
fast as adding the unpacked values. The 1.6 bits per coordinate are within 1 % of log2(3). The chain `terngrad+ans` needs fewer
bits.

Source: Wen, Xu, Yan, Wu, Wang, Chen, Li, "TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep Learning",
NIPS 2017.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from psnode.codecs.base import NOTHING, Bytes, Codec, Codes, Floats, Measured, Shape, Words, readonly
from psnode.codecs.bounds import check_real
from psnode.codecs.contractive import Contractive
from psnode.codecs.kernels.finite import INFINITY_BITS
from psnode.codecs.kernels.ternary import digits_of, write
from psnode.codecs.rows.codec import Generated, coder_of
from psnode.codecs.rows.coder import Coder
from psnode.codecs.rows.formula import Formula
from psnode.codecs.rows.known.terngrad import TernGradRows
from psnode.codecs.sources import Values
from psnode.codecs.stages import Quantiser, Symbols
from psnode.codecs.traits import Traits
from psnode.errors import PayloadError

_SIDE = 4
_MAX_CLIP = 1000


@dataclass(frozen=True, repr=False)
class TernGrad(Generated, Quantiser):
    """terngrad:clip=0. `clip`: clip values at this number of root mean squares; 0: do not clip.

    The largest magnitude and zero are decoded exactly:

    >>> from psnode.codecs import get_codec
    >>> codec, x = get_codec("terngrad"), np.array([2, 0, -2, 2], np.float32)
    >>> codec.decode(codec.encode(x, np.random.default_rng(1))).tolist()
    [2.0, 0.0, -2.0, 2.0]
    """

    clip: float = 0.0

    id = "terngrad"

    def __post_init__(self) -> None:
        """Raise CodecSpecError for a clip out of bounds."""
        check_real(self, "clip", 0, _MAX_CLIP)

    @property
    def traits(self) -> Traits:
        """The traits of the codec. It is unbiased if values are not clipped."""
        return Traits(one_scale=True, unbiased=not self.clip)

    def contractive(self) -> Codec:
        """Return the codec wrapped in Contractive, even if the codec is biased.

        Clipping by itself would leave an error hardly below ||x||^2.
        """
        return Contractive(self)

    def formula(self) -> Formula:
        """Return the formula from which the codec's kernels are generated: TernGradRows."""
        return TernGradRows(self)

    def check_fields(self, body: Bytes) -> None:
        """Raise PayloadError unless `body` starts with a valid scale."""
        _scale(body[:_SIDE])

    def _read(self, body: Bytes, size: int) -> tuple[Coder, Bytes]:
        self.check_fields(body)
        coder = coder_of(self)
        coder.check(body, size)
        return coder, body

    def _measure(self, body: Bytes, shape: Shape, room: Floats | None) -> Measured:
        """Return an upper bound of the norm: the norm of an array whose magnitudes are all s."""
        size = math.prod(shape)
        self._read(body, size)
        scale = float(_scale(body[:_SIDE]))
        return Measured(scale * math.sqrt(size), lambda out, weight: self._decode_add(body, out, weight))

    def _max_symbols(self, size: int) -> tuple[int, int, int]:
        return _SIDE, size, 3

    def _symbols(self, x: Floats, key: Words) -> Symbols:
        body, codes = np.empty(self._max_body(x.shape), np.uint8), np.empty(x.size, np.uint8)
        self._encode(Values(x), key, body, NOTHING)
        digits_of(readonly(body[_SIDE:]), codes)
        return Symbols(body[:_SIDE], codes, 3)

    def _read_side(self, side: Bytes, size: int) -> tuple[int, int]:
        _scale(side)
        return size, 3

    def _from_symbols(self, side: Bytes, codes: Codes, out: Floats) -> None:
        write(np.asarray(codes, np.uint8), _scale(side), out)


def _scale(side: Bytes) -> np.float32:
    if side.size != _SIDE or int(side.view(np.uint32)[0]) >= INFINITY_BITS:
        raise PayloadError("terngrad: the scale is missing, negative or not finite")
    return np.float32(side.view(np.float32)[0])
