"""Min-max: every coordinate is rounded at random, without bias, to one of 2^b equidistant values from minimum to maximum.

Let r = max - min be the range and n = 2^b - 1 the number of steps. A coordinate v decodes to one of its two neighbours among
these values. E decode = v, and the variance of a coordinate is f (1 - f) (r / n)^2 <= (r / n)^2 / 4, where f is the fractional
part of (v - min) n / r. In general zero is not one of the 2^b values.

    body   uint32 bits b
           float32 min, float32 max
           codes of b bits: see psnode.codecs.kernels.planes

Source: the quantiser that Bai et al., "Gradient Compression Supercharged High-Performance Data Parallel DNN Training" (HiPress),
SOSP 2021, call TernGrad with a bit width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from psnode.codecs.base import NOTHING, Bytes, Codes, Floats, Measured, Shape, Words, readonly
from psnode.codecs.kernels.packed import pack, unpack
from psnode.codecs.kernels.planes import packed_nbytes
from psnode.codecs.rows.codec import Generated, coder_of, interpreted
from psnode.codecs.rows.coder import Coder
from psnode.codecs.rows.formula import Formula
from psnode.codecs.rows.known.minmax import MinMaxRows
from psnode.codecs.sources import Values
from psnode.codecs.stages import Quantiser, Symbols
from psnode.codecs.traits import Traits
from psnode.errors import CodecSpecError, PayloadError

WIDTHS = (1, 2, 4, 8)
_SIDE = 12


@dataclass(frozen=True, repr=False)
class MinMax(Generated, Quantiser):
    """minmax:bits=4. `bits` b per coordinate: 1, 2, 4 or 8.

    The minimum and the maximum are decoded exactly:

    >>> from psnode.codecs import get_codec
    >>> codec, x = get_codec("minmax:bits=1"), np.array([-1, 3, -1, 3], np.float32)
    >>> codec.decode(codec.encode(x, np.random.default_rng(1))).tolist()
    [-1.0, 3.0, -1.0, 3.0]
    """

    bits: int = 4

    id = "minmax"
    traits = Traits(unbiased=True, one_scale=True)

    def __post_init__(self) -> None:
        """Raise CodecSpecError unless bits is 1, 2, 4 or 8."""
        if isinstance(self.bits, bool) or self.bits not in WIDTHS:
            raise CodecSpecError(f"minmax: bits={self.bits} must be one of {', '.join(map(str, WIDTHS))}")

    def formula(self) -> Formula:
        """Return the formula from which the codec's kernels are generated: MinMaxRows."""
        return MinMaxRows(self)

    def check_fields(self, body: Bytes) -> None:
        """Raise PayloadError if the fields hold a number of bits, a minimum or a maximum that encode never writes."""
        _bits(body[:_SIDE])

    def _measure(self, body: Bytes, shape: Shape, room: Floats | None) -> Measured:
        """Return an upper bound of the norm, from the larger magnitude of minimum and maximum."""
        size = math.prod(shape)
        self._read(body, size)
        top = float(np.abs(body[4:_SIDE].view(np.float32)).max())
        return Measured(top * math.sqrt(size), lambda out, weight: self._decode_add(body, out, weight))

    def _read(self, body: Bytes, size: int) -> tuple[Coder, Bytes]:
        bits = _bits(body[:_SIDE])
        coder = coder_of(self) if bits == self.bits else interpreted(MinMax(bits))
        coder.check(body, size)
        return coder, body

    def _max_symbols(self, size: int) -> tuple[int, int, int]:
        return _SIDE, size, 2**self.bits

    def _symbols(self, x: Floats, key: Words) -> Symbols:
        body, codes = np.empty(self._max_body(x.shape), np.uint8), np.empty(x.size, np.uint8)
        self._encode(Values(x), key, body, NOTHING)
        unpack(body[_SIDE:], codes, 2**self.bits, self.id)
        return Symbols(body[:_SIDE], codes, 2**self.bits)

    def _read_side(self, side: Bytes, size: int) -> tuple[int, int]:
        return size, 2 ** _bits(side)

    def _from_symbols(self, side: Bytes, codes: Codes, out: Floats) -> None:
        bits = _bits(side)
        body = np.empty(_SIDE + packed_nbytes(out.size, bits), np.uint8)
        body[:_SIDE] = side
        pack(np.asarray(codes, np.uint8), 2**bits, body[_SIDE:])
        self._decode(readonly(body), out)


def _bits(side: Bytes) -> int:
    """Return the number of bits that the side information states. Raises PayloadError unless `side` is valid."""
    if side.size != _SIDE:
        raise PayloadError(f"minmax: {side.size} bytes of side information instead of {_SIDE}")
    bits, ends = int(side[:4].view(np.uint32)[0]), side[4:].view(np.float32)
    if bits not in WIDTHS or not np.isfinite(ends).all() or ends[0] > ends[1]:
        raise PayloadError(f"minmax: codes of {bits} bits from {ends[0]:g} to {ends[1]:g}")
    return bits
