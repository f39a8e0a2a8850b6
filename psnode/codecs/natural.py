"""Natural compression: every magnitude rounded at random, without bias, to one of the two powers of two next to it.

2^e (1 + f) goes to 2^(e+1) with probability f, else to 2^e: E decode = v, E||decode - v||^2 <= ||v||^2 / 8. It needs no norm.
The exponents that occur decide the bits of a code: 6 for a million Gaussian values, at most 9.

    body   int16 t, uint16 exponents that occur, L (0..255)
           codes of bit_length(2 L) bits, see kernels.planes: 0 for 0, 1 + 2 j + (1 if negative) for +-2^(t - j)

2^128 stands for the largest float32. Magnitudes below 2^(t - L + 1), which are there only if the exponents span more than 255,
go to that or to 0, without bias too.

Source: Horvath, Ho, Horvath, Sahu, Canini, Richtarik, "Natural Compression for Distributed Deep Learning", MSML 2022.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from psnode.codecs.base import NOTHING, Bytes, Codes, Floats, Shape, Sink, Source, Words, readonly
from psnode.codecs.kernels import powers as kernels
from psnode.codecs.kernels.finite import INFINITY_BITS, raise_nonfinite
from psnode.codecs.kernels.planes import BLOCK, packed_nbytes
from psnode.codecs.kernels.powers import Coded, Grid
from psnode.codecs.rng import Draws
from psnode.codecs.sources import leaves_error, operands
from psnode.codecs.stages import Quantiser, Symbols, codes_like
from psnode.codecs.table import number_of
from psnode.codecs.traits import Traits
from psnode.errors import PayloadError

MAX_EXPONENTS = 255
_FIELDS = 4
_HIGHEST, _LOWEST = 128, -149
_NO_BYTES = np.empty(0, np.uint8)
_NO_FLOATS = np.empty(0, np.float32)


@dataclass(frozen=True, repr=False)
class Natural(Quantiser):
    """natural: no parameters, omega <= 1/8."""

    id = "natural"
    traits = Traits(unbiased=True)

    def _max_body(self, shape: Shape) -> int:
        return _FIELDS + packed_nbytes(math.prod(shape), (2 * MAX_EXPONENTS).bit_length())

    def _fuses(self, source: Source, sink: Sink) -> bool:
        return sink is NOTHING or leaves_error(source, sink)

    def _encode(self, source: Source, key: Words, body: Bytes, sink: Sink) -> int:
        x, error = operands(source, sink)
        top, exponents = _range(x)
        used = _FIELDS + packed_nbytes(x.size, (2 * exponents).bit_length())
        self._quantise(x, top, exponents, key, Coded(body[_FIELDS:used], _NO_BYTES), error)
        body[:2].view(np.int16)[0] = top
        body[2:_FIELDS].view(np.uint16)[0] = exponents
        return used

    def _quantise(self, x: Floats, top: int, exponents: int, key: Words, coded: Coded, error: Floats) -> None:
        draws = Draws(key, number_of(self.id))
        kernels.encode(x.reshape(-1), _grid(exponents, x.size), kernels.GIVEN, _norm(top, exponents), draws, coded, error)

    def _decode(self, body: Bytes, out: Floats) -> None:
        self._read(body, out, np.float32(1), False)

    def _decode_add(self, body: Bytes, out: Floats, weight: np.float32) -> None:
        self._read(body, out, weight, True)

    def _read(self, body: Bytes, out: Floats, weight: np.float32, add: bool) -> None:
        top, exponents = _fields(body)
        bits = (2 * exponents).bit_length()
        if body.size != _FIELDS + packed_nbytes(out.size, bits):
            raise PayloadError(f"natural: a body of {body.size} bytes cannot hold {out.size} codes of {bits} bits")
        _expand(top, exponents, Coded(body[_FIELDS:], readonly(_NO_BYTES)), out.reshape(-1), weight, add)

    def _max_symbols(self, size: int) -> tuple[int, int, int]:
        return _FIELDS, size, 2 * MAX_EXPONENTS + 1

    def _symbols(self, x: Floats, key: Words) -> Symbols:
        top, exponents = _range(x)
        side = np.empty(_FIELDS, np.uint8)
        side[:2].view(np.int16)[0] = top
        side[2:].view(np.uint16)[0] = exponents
        codes = codes_like(x.size, 2 * exponents + 1)
        self._quantise(x, top, exponents, key, Coded(_NO_BYTES, codes), _NO_FLOATS)
        return Symbols(side, codes, 2 * exponents + 1)

    def _read_side(self, side: Bytes, size: int) -> tuple[int, int]:
        _, exponents = _fields(side)
        if side.size != _FIELDS:
            raise PayloadError(f"natural: {side.size} bytes of side information instead of {_FIELDS}")
        return size, 2 * exponents + 1

    def _from_symbols(self, side: Bytes, codes: Codes, out: Floats) -> None:
        _expand(*_fields(side), Coded(side[:0], readonly(codes)), out, np.float32(1), False)


def _expand(top: int, exponents: int, coded: Coded, out: Floats, weight: np.float32, add: bool) -> None:
    kernels.decode(_grid(exponents, out.size), _norm(top, exponents), coded, out, weight, add)


def _grid(exponents: int, size: int) -> Grid:
    """One bucket for all."""
    return Grid(max(exponents - 1, 0), (2 * exponents).bit_length(), -(-size // BLOCK) * BLOCK)


def _norm(top: int, exponents: int) -> np.ndarray:
    return np.array([math.ldexp(1.0, top) if exponents else 0.0])


def _range(x: Floats) -> tuple[int, int]:
    """The largest exponent that `x` can be rounded to, and how many there are from it down."""
    largest, smallest = kernels.extremes(x.reshape(-1))
    if largest >= INFINITY_BITS:
        raise_nonfinite(x)
    if not largest:
        return 0, 0
    high, low = (math.frexp(float(np.array(bits, np.uint32).view(np.float32))) for bits in (largest, smallest))
    top = high[1] - (high[0] == 0.5)
    return top, min(top - low[1] + 2, MAX_EXPONENTS)


def _fields(body: Bytes) -> tuple[int, int]:
    """t and L, both valid."""
    if body.size < _FIELDS:
        raise PayloadError(f"natural: a body of {body.size} bytes ends inside its fields")
    top, exponents = int(body[:2].view(np.int16)[0]), int(body[2:_FIELDS].view(np.uint16)[0])
    if not _LOWEST <= top <= _HIGHEST or exponents > min(MAX_EXPONENTS, top - _LOWEST + 1) or not (exponents or not top):
        raise PayloadError(f"natural: exponents from {top} down, {exponents} of them, are not those of float32 values")
    return top, exponents
