"""Min-max: 2^b equidistant values from the least coordinate to the greatest, rounded to at random and without bias.

With span r = max - min and n = 2^b - 1 steps, v decodes to one of its two neighbours; E decode = v, and a coordinate's variance
is f (1 - f) (r / n)^2 <= (r / n)^2 / 4 with f the fraction of (v - min) n / r. An exact zero is on the grid only by chance.

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

from psnode.codecs.arrays import Words32
from psnode.codecs.base import NOTHING, Bytes, Codes, Floats, Measured, Shape, Sink, Source, Words, readonly
from psnode.codecs.kernels import minmax as kernels
from psnode.codecs.kernels.dots import NOTHING_LOST, Lost
from psnode.codecs.kernels.finite import raise_nonfinite
from psnode.codecs.kernels.minmax import Cells, Levels
from psnode.codecs.kernels.parts import NO_PARTS, PartTable, reached
from psnode.codecs.kernels.planes import packed_nbytes
from psnode.codecs.kernels.stochastic import ROW, Rule, factor_of
from psnode.codecs.rng import Draws
from psnode.codecs.sinks import InnerProducts
from psnode.codecs.sources import leaves_error, operands
from psnode.codecs.stages import Quantiser, Symbols
from psnode.codecs.table import number_of
from psnode.codecs.traits import Traits
from psnode.errors import CodecSpecError, PayloadError

WIDTHS = (1, 2, 4, 8)
_SIDE = 12
_SMALL, _LARGE = 2.0**-64, 2.0**120
_NO_WORDS = np.empty(0, np.uint32)
_NO_BYTES = np.empty(0, np.uint8)


@dataclass(frozen=True, repr=False)
class MinMax(Quantiser):
    """minmax:bits=4. `bits` a coordinate: 1, 2, 4 or 8."""

    bits: int = 4

    id = "minmax"
    traits = Traits(unbiased=True, one_scale=True)

    def __post_init__(self) -> None:
        """CodecSpecError for bits other than those."""
        if isinstance(self.bits, bool) or self.bits not in WIDTHS:
            raise CodecSpecError(f"minmax: bits={self.bits} must be one of {', '.join(map(str, WIDTHS))}")

    def _max_body(self, shape: Shape) -> int:
        return _SIDE + packed_nbytes(math.prod(shape), self.bits)

    def _fuses(self, source: Source, sink: Sink) -> bool:
        return sink is NOTHING or isinstance(sink, InnerProducts) or leaves_error(source, sink)

    def _encode(self, source: Source, key: Words, body: Bytes, sink: Sink) -> int:
        parts = source.table()
        x, error = operands(source, sink)
        used, lost = self._max_body(x.shape), Lost(error, sink.dots())
        cells = Cells(*_rows(body[_SIDE:used], x.size, self.bits), _NO_BYTES)
        if not self._quantise(x, parts, key, body[:_SIDE], cells, lost):
            source.refuse(reached(parts))
        if isinstance(sink, InnerProducts):
            sink.record(*lost.dots.tolist())
        return used

    def _quantise(self, x: Floats, parts: PartTable, key: Words, side: Bytes, cells: Cells, lost: Lost) -> bool:
        """Write bits and extremes to `side`, and the codes; False if `x`, to whose memory `parts` are added, is not finite."""
        side[:4].view(np.uint32)[0] = self.bits
        ends = side[4:].view(np.float32)
        if not kernels.extremes(x, parts, ends):
            return False
        up = np.float32(_balance(ends))
        low, high = ends * up
        rule = Rule(low, factor_of(high - low, 2**self.bits - 1), 0)
        kernels.encode(x, self.bits, rule, _levels(ends, self.bits), Draws(key, number_of(self.id)), cells, lost)
        return True

    def _decode(self, body: Bytes, out: Floats) -> None:
        kernels.decode(*self._read(body, out.size), np.float32(1), out.reshape(-1), False)

    def _decode_add(self, body: Bytes, out: Floats, weight: np.float32) -> None:
        kernels.decode(*self._read(body, out.size), weight, out.reshape(-1), True)

    def _measure(self, body: Bytes, shape: Shape, room: Floats | None) -> Measured:
        """From the larger end."""
        size = math.prod(shape)
        self._read(body, size)
        top = float(np.abs(body[4:_SIDE].view(np.float32)).max())
        return Measured(top * math.sqrt(size), lambda out, weight: self._decode_add(body, out, weight))

    def _read(self, body: Bytes, size: int) -> tuple[Words32, Bytes, int, Levels]:
        """Packed rows, the incomplete one, bits and levels of a body that is valid."""
        bits, levels = _fields(body[:_SIDE])
        data = body[_SIDE:]
        if data.size != packed_nbytes(size, bits):
            raise PayloadError(
                f"minmax: {data.size} bytes instead of {packed_nbytes(size, bits)} for {size} codes of {bits} bits"
            )
        packed, tail = _rows(data, size, bits)
        if tail.size and not kernels.is_padded(tail, size % ROW, bits):
            raise PayloadError("minmax: bits follow those of the last code")
        return packed, tail, bits, levels

    def _max_symbols(self, size: int) -> tuple[int, int, int]:
        return _SIDE, size, 2**self.bits

    def _symbols(self, x: Floats, key: Words) -> Symbols:
        side, codes = np.empty(_SIDE, np.uint8), np.empty(x.size, np.uint8)
        if not self._quantise(x, NO_PARTS, key, side, Cells(_NO_WORDS, _NO_BYTES, codes), NOTHING_LOST):
            raise_nonfinite(x)
        return Symbols(side, codes, 2**self.bits)

    def _read_side(self, side: Bytes, size: int) -> tuple[int, int]:
        return size, 2 ** _fields(side)[0]

    def _from_symbols(self, side: Bytes, codes: Codes, out: Floats) -> None:
        kernels.write(readonly(np.asarray(codes, np.uint8)), _fields(side)[1], out)


def _balance(ends: Floats) -> float:
    """A power of two that keeps the span of `ends`, and its inverse, within float32's range."""
    span = float(ends[1]) - float(ends[0])
    return 2.0**64 if 0 < span < _SMALL else 0.25 if span > _LARGE else 1.0


def _levels(ends: Floats, bits: int) -> Levels:
    """The values of codes of `bits` bits from ends[0] to ends[1]."""
    up = _balance(ends)
    low, high = (float(end) for end in ends)
    base, step, top = (np.float32(v) for v in (low * up, (high - low) * up / (2**bits - 1), high * up))
    while base + np.float32(2**bits - 1) * step > top:
        step = np.nextafter(step, np.float32(0))
    return Levels(base, step, np.float32(1 / up))


def _rows(data: Bytes, size: int, bits: int) -> tuple[Words32, Bytes]:
    """The complete rows and the last, incomplete one of the packed codes of `size` coordinates."""
    end = size // ROW * (ROW // 8) * bits
    return data[:end].view(np.uint32), data[end:]


def _fields(side: Bytes) -> tuple[int, Levels]:
    """Bits and levels of side information that is valid."""
    if side.size != _SIDE:
        raise PayloadError(f"minmax: {side.size} bytes of side information instead of {_SIDE}")
    bits, ends = int(side[:4].view(np.uint32)[0]), side[4:].view(np.float32)
    if bits not in WIDTHS or not np.isfinite(ends).all() or ends[0] > ends[1]:
        raise PayloadError(f"minmax: codes of {bits} bits from {ends[0]:g} to {ends[1]:g}")
    return bits, _levels(ends, bits)
