"""QSGD: every coordinate rounded at random to one of s magnitudes of its bucket's norm, without bias.

In a bucket with norm n, v is sent as level l = floor(s |v| / n), or l + 1 with probability the fraction; it decodes to
sign(v) l n / s. E decode = v; with the L2 norm and B coordinates a bucket E||decode - v||^2 <= min(B / s^2, sqrt(B) / s) ||v||^2.
At most 1 + log2(s + 1) bits a coordinate, exactly that if s = 2^k - 1, and 32 bits a bucket.

    body   uint32 levels s, uint32 bucket B
           float32 norm of every bucket
           codes l + s, signed l, of bit_length(2 s) bits: see psnode.codecs.kernels.planes

Source: Alistarh, Grubic, Li, Tomioka, Vojnovic, "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding",
NIPS 2017.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from psnode.codecs.arrays import Words32
from psnode.codecs.base import NOTHING, Bytes, Codes, Floats, Measured, Shape, Sink, Source, Words, readonly
from psnode.codecs.bounds import check_choice, check_integer
from psnode.codecs.kernels import qsgd as kernels
from psnode.codecs.kernels.finite import INFINITY_BITS, raise_nonfinite
from psnode.codecs.kernels.parts import NO_PARTS, table_of
from psnode.codecs.kernels.planes import BLOCK, packed_nbytes
from psnode.codecs.norm import norm_of_buckets
from psnode.codecs.payload import MAX_COORDINATES
from psnode.codecs.sinks import InnerProducts
from psnode.codecs.sources import Accumulated, Copied, leaves_error, operands
from psnode.codecs.stages import Quantiser, Symbols, codes_like
from psnode.codecs.table import number_of
from psnode.codecs.traits import Traits
from psnode.errors import PayloadError

MAX_LEVELS = 32767  # a level and 16 random bits fill an int32
_FIELDS = 8
_NO_BYTES = np.empty(0, np.uint8)
_NO_WORDS = np.empty(0, np.uint32)
_NO_FLOATS = np.empty(0, np.float32)
_NO_DOTS = np.empty(0, np.float64)


@dataclass(frozen=True, repr=False)
class Qsgd(Quantiser):
    """qsgd:levels=15,bucket=512,norm=l2.

    `levels`: non-zero magnitudes s, 1..32767. `bucket`: coordinates that share a norm; small ones cost bits, large ones
    variance. `norm`: l2, or max, which has less variance at the same s (no value lies far below the largest level) but is
    less sparse.
    """

    levels: int = 15
    bucket: int = 512
    norm: Literal["l2", "max"] = "l2"

    id = "qsgd"
    traits = Traits(unbiased=True)

    def __post_init__(self) -> None:
        """CodecSpecError for a value out of bounds."""
        check_integer(self, "levels", 1, MAX_LEVELS)
        check_integer(self, "bucket", 1, MAX_COORDINATES)
        check_choice(self, "norm", ("l2", "max"))

    def _max_body(self, shape: Shape) -> int:
        return _body_nbytes(math.prod(shape), self.levels, self.bucket)

    def _fuses(self, source: Source, sink: Sink) -> bool:
        if isinstance(sink, InnerProducts):
            return not isinstance(source, Copied)
        return sink is NOTHING or leaves_error(source, sink)

    def _encode(self, source: Source, key: Words, body: Bytes, sink: Sink) -> int:
        parts = NO_PARTS
        if isinstance(source, Accumulated) and isinstance(sink, InnerProducts):
            parts = table_of(source.take(), source.target.reshape(-1))
        x, error = operands(source, sink)
        used, dots = self._max_body(source.shape), np.zeros(2 if isinstance(sink, InnerProducts) else 0)
        norms, packed, tail = _views(body[:used], x.size, self.levels, self.bucket)
        if not self._quantise(x, key, body, norms, packed, tail, _NO_BYTES, error, dots, parts):
            source.refuse(int(parts.reached[0]))
        if isinstance(sink, InnerProducts):
            sink.record(*dots.tolist())
        return used

    def _quantise(self, x: Floats, key: Words, side: Bytes, *outputs: Any) -> bool:
        """Write the fields to `side` and the rest to `outputs`, the last arguments of the kernel; whether x is finite."""
        side[:_FIELDS].view(np.uint32)[:] = self.levels, self.bucket
        settings = self.levels, _bits(self.levels), self.bucket, self.norm == "l2"
        return kernels.encode(x, *settings, key, number_of(self.id), *outputs)

    def _decode(self, body: Bytes, out: Floats) -> None:
        self._read(body, out, np.float32(1), False)

    def _decode_add(self, body: Bytes, out: Floats, weight: np.float32) -> None:
        self._read(body, out, weight, True)

    def _measure(self, body: Bytes, shape: Shape, room: Floats | None) -> Measured:
        """From the norms of the buckets, which no decoded magnitude exceeds."""
        size = math.prod(shape)
        levels, bucket = _checked(body, size)
        norms, _, _ = _views(body, size, levels, bucket)
        return Measured(norm_of_buckets(norms, bucket, size), lambda out, weight: self._read(body, out, weight, True))

    def _read(self, body: Bytes, out: Floats, weight: np.float32, add: bool) -> None:
        levels, bucket = _checked(body, out.size)
        norms, packed, tail = _views(body, out.size, levels, bucket)
        codes = readonly(_NO_BYTES)
        kernels.decode(levels, _bits(levels), bucket, norms, packed, tail, codes, out.reshape(-1), weight, add)

    def _max_symbols(self, size: int) -> tuple[int, int, int]:
        return _FIELDS + 4 * -(-size // self.bucket), size, 2 * self.levels + 1

    def _symbols(self, x: Floats, key: Words) -> Symbols:
        side_nbytes, count, alphabet = self._max_symbols(x.size)
        side = np.empty(side_nbytes, np.uint8)
        codes = codes_like(count, alphabet)
        norms = side[_FIELDS:].view(np.float32)
        if not self._quantise(x, key, side, norms, _NO_WORDS, _NO_BYTES, codes, _NO_FLOATS, _NO_DOTS, NO_PARTS):
            raise_nonfinite(x)
        return Symbols(side, codes, alphabet)

    def _read_side(self, side: Bytes, size: int) -> tuple[int, int]:
        levels, bucket = _fields(side, size)
        if side.size != _FIELDS + 4 * -(-size // bucket):
            raise PayloadError(f"qsgd: {side.size} bytes of side information for {size} coordinates with {bucket=}")
        return size, 2 * levels + 1

    def _from_symbols(self, side: Bytes, codes: Codes, out: Floats) -> None:
        levels, bucket = _fields(side, out.size)
        norms, packed, tail = side[_FIELDS:].view(np.float32), readonly(_NO_WORDS), readonly(_NO_BYTES)
        one = np.float32(1)
        kernels.decode(levels, _bits(levels), bucket, norms, packed, tail, readonly(codes), out, one, False)


def _bits(levels: int) -> int:
    return (2 * levels).bit_length()


def _body_nbytes(size: int, levels: int, bucket: int) -> int:
    return _FIELDS + 4 * -(-size // bucket) + packed_nbytes(size, _bits(levels))


def _fields(body: Bytes, size: int) -> tuple[int, int]:
    """Levels and bucket of a body that has room for its norms, all of them valid."""
    levels, bucket = body[:_FIELDS].view(np.uint32).tolist() if body.size >= _FIELDS else (0, 0)
    if not 1 <= levels <= MAX_LEVELS or not 1 <= bucket <= MAX_COORDINATES:
        raise PayloadError(f"qsgd: {levels=}, {bucket=} in a body of {body.size} bytes")
    end = _FIELDS + 4 * -(-size // bucket)
    if body.size < end:
        raise PayloadError(f"qsgd: a body of {body.size} bytes lacks norms for {size} coordinates with {bucket=}")
    if size and int(body[_FIELDS:end].view(np.uint32).max()) >= INFINITY_BITS:
        raise PayloadError("qsgd: the norm of a bucket is negative or not finite")
    return levels, bucket


def _checked(body: Bytes, size: int) -> tuple[int, int]:
    """Levels and bucket of a body that is valid."""
    levels, bucket = _fields(body, size)
    if body.size != _body_nbytes(size, levels, bucket):
        raise PayloadError(f"qsgd: a body of {body.size} bytes cannot hold {size} codes with {levels=}, {bucket=}")
    return levels, bucket


def _views(body: Bytes, size: int, levels: int, bucket: int) -> tuple[Floats, Words32, Bytes]:
    """The norms, the packed full blocks and the packed last block of a body that has the right length."""
    start = _FIELDS + 4 * -(-size // bucket)
    end = start + size // BLOCK * (BLOCK // 8) * _bits(levels)
    return body[_FIELDS:start].view(np.float32), body[start:end].view(np.uint32), body[end:]
