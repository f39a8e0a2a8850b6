"""QSGD: every coordinate is rounded at random, without bias, to a multiple of 1 / s of its bucket's norm.

In a bucket with norm n, a coordinate v is sent as level l = floor(s |v| / n), or as l + 1 with a probability equal to the
fractional part of s |v| / n, and decodes to sign(v) n / s times its level. E decode = v. With the L2 norm and B coordinates per
bucket, E||decode - v||^2 <= min(B / s^2, sqrt(B) / s) ||v||^2. A code has bit_length(2 s) bits per coordinate, which is 1 +
log2(s + 1) if s = 2^k - 1. A bucket adds 32 bits.

With `factors`, a bucket x that would decode to y is sent with n <x, y> / <y, y> in place of n. It then decodes to the multiple
of y nearest to x, at a squared distance of ||x||^2 (1 - cos^2(x, y)). This form is biased, but it is a contraction of every
bucket, and is meant for error feedback. Encoding takes one sweep, whereas one factor for all buckets would take two. The
payload has the same format with and without `factors`.

    body   uint32 levels s, uint32 bucket B
           float32 norm of every bucket
           codes, signed level + s, of bit_length(2 s) bits: see psnode.codecs.kernels.planes

Source: Alistarh, Grubic, Li, Tomioka, Vojnovic, "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding",
NIPS 2017.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from psnode.codecs.base import NOTHING, Bytes, Codes, Floats, Measured, Shape, Sink, Source, Words, readonly
from psnode.codecs.bounds import check_choice, check_integer
from psnode.codecs.kernels import qsgd as kernels
from psnode.codecs.kernels.dots import Lost, folded
from psnode.codecs.kernels.finite import INFINITY_BITS, raise_nonfinite
from psnode.codecs.kernels.norms import norm_of_buckets
from psnode.codecs.kernels.parts import NO_PARTS, PartTable, reached
from psnode.codecs.kernels.planes import BLOCK, packed_nbytes
from psnode.codecs.kernels.qsgd import Body, Form
from psnode.codecs.kernels.qsgd_blocks import Grid
from psnode.codecs.payload import MAX_COORDINATES
from psnode.codecs.rng import Draws
from psnode.codecs.sinks import InnerProducts
from psnode.codecs.sources import NO_FLOATS, Copied, leaves_error, operands
from psnode.codecs.spec import added_later
from psnode.codecs.stages import Quantiser, Symbols, codes_like
from psnode.codecs.table import number_of
from psnode.codecs.traits import Traits
from psnode.errors import CodecSpecError, PayloadError

MAX_LEVELS = 32767  # a level and 16 random bits must fit into an int32
_FIELDS = 8
_NO_BYTES = np.empty(0, np.uint8)
_NO_WORDS = np.empty(0, np.uint32)


@dataclass(frozen=True, repr=False)
class Qsgd(Quantiser):
    """qsgd:levels=15,bucket=512,norm=l2.

    `levels`: the number s of non-zero magnitudes, 1..32767. `bucket`: the number of coordinates that share a norm. Small
    buckets take more bits, large buckets have more variance. `norm`: l2 or max. At the same s, max has less variance, because
    the largest value is at the largest level, but fewer values decode to 0. `factors`: scale every bucket for the least squared
    error. The codec is then biased, and `bucket` must be a multiple of 512.

    With 15 levels, multiples of a fifteenth of the norm are decoded exactly:

    >>> from psnode.codecs import get_codec
    >>> codec, x = get_codec("qsgd:levels=15,norm=max"), np.array([15, -7, 0, 1], np.float32)
    >>> codec.decode(codec.encode(x, np.random.default_rng(1))).tolist()
    [15.0, -7.0, 0.0, 1.0]
    """

    levels: int = 15
    bucket: int = 512
    norm: Literal["l2", "max"] = "l2"
    factors: bool = added_later(False)

    id = "qsgd"

    @property
    def traits(self) -> Traits:
        """The traits of the codec. It is unbiased without `factors`."""
        return Traits(unbiased=not self.factors)

    def __post_init__(self) -> None:
        """Raise CodecSpecError for a value out of bounds."""
        check_integer(self, "levels", 1, MAX_LEVELS)
        check_integer(self, "bucket", 1, MAX_COORDINATES)
        check_choice(self, "norm", ("l2", "max"))
        if self.factors and self.bucket % BLOCK:
            raise CodecSpecError(f"qsgd: with factors the bucket must be a multiple of {BLOCK}, not {self.bucket}")

    def _max_body(self, shape: Shape) -> int:
        return _body_nbytes(math.prod(shape), self.levels, self.bucket)

    def _fuses(self, source: Source, sink: Sink) -> bool:
        if isinstance(sink, InnerProducts):
            return not isinstance(source, Copied) and not self.factors
        return sink is NOTHING or leaves_error(source, sink)

    def _encode(self, source: Source, key: Words, body: Bytes, sink: Sink) -> int:
        parts = source.table()
        x, error = operands(source, sink)
        used, lost = self._max_body(source.shape), self._lost(error, sink, x.size)
        body[:_FIELDS].view(np.uint32)[:] = self.levels, self.bucket
        done = self._quantise(x, parts, key, _views(body[:used], x.size, self.levels, self.bucket), lost)
        if done < x.size:
            decoded = np.empty(done if error.size else 0, np.float32)
            written = _views(readonly(body[:used]), x.size, self.levels, self.bucket)
            kernels.decode(_grid(self.levels, self.bucket), written, decoded, np.float32(1), False)
            source.refuse(reached(parts), decoded)
        if isinstance(sink, InnerProducts):
            sink.record(*folded(lost.dots))
        return used

    def _lost(self, error: Floats, sink: Sink, size: int) -> Lost:
        """Return the kernel's outputs other than the payload. With `factors` the array for inner products is workspace."""
        return Lost(error, np.zeros(2) if self.factors else sink.dots(size))

    def _quantise(self, x: Floats, parts: PartTable, key: Words, out: Body, lost: Lost) -> int:
        """Write norms and codes of `x`, to which `parts` are added. Return the number of coordinates that were processed.

        This number is less than the number of all coordinates if a value is not finite.
        """
        form, draws = Form(self.norm == "l2", self.factors), Draws(key, number_of(self.id))
        return kernels.encode(x, parts, _grid(self.levels, self.bucket), form, draws, out, lost)

    def _decode(self, body: Bytes, out: Floats) -> None:
        self._read(body, out, np.float32(1), False)

    def _decode_add(self, body: Bytes, out: Floats, weight: np.float32) -> None:
        self._read(body, out, weight, True)

    def _measure(self, body: Bytes, shape: Shape, room: Floats | None) -> Measured:
        """Return an upper bound of the norm, from the norms of the buckets, which no decoded magnitude exceeds."""
        size = math.prod(shape)
        levels, bucket = _checked(body, size)
        norms = _views(body, size, levels, bucket).norms
        return Measured(norm_of_buckets(norms, bucket, size), lambda out, weight: self._read(body, out, weight, True))

    def _read(self, body: Bytes, out: Floats, weight: np.float32, add: bool) -> None:
        levels, bucket = _checked(body, out.size)
        kernels.decode(_grid(levels, bucket), _views(body, out.size, levels, bucket), out.reshape(-1), weight, add)

    def _max_symbols(self, size: int) -> tuple[int, int, int]:
        return _FIELDS + 4 * -(-size // self.bucket), size, 2 * self.levels + 1

    def _symbols(self, x: Floats, key: Words) -> Symbols:
        side_nbytes, count, alphabet = self._max_symbols(x.size)
        side = np.empty(side_nbytes, np.uint8)
        side[:_FIELDS].view(np.uint32)[:] = self.levels, self.bucket
        codes = codes_like(count, alphabet)
        out = Body(side[_FIELDS:].view(np.float32), _NO_WORDS, _NO_BYTES, codes)
        if self._quantise(x, NO_PARTS, key, out, self._lost(NO_FLOATS, NOTHING, x.size)) < x.size:
            raise_nonfinite(x)
        return Symbols(side, codes, alphabet)

    def _read_side(self, side: Bytes, size: int) -> tuple[int, int]:
        levels, bucket = _fields(side, size)
        if side.size != _FIELDS + 4 * -(-size // bucket):
            raise PayloadError(f"qsgd: {side.size} bytes of side information for {size} coordinates with {bucket=}")
        return size, 2 * levels + 1

    def _from_symbols(self, side: Bytes, codes: Codes, out: Floats) -> None:
        levels, bucket = _fields(side, out.size)
        body = Body(side[_FIELDS:].view(np.float32), readonly(_NO_WORDS), readonly(_NO_BYTES), readonly(codes))
        kernels.decode(_grid(levels, bucket), body, out, np.float32(1), False)


def _bits(levels: int) -> int:
    return (2 * levels).bit_length()


def _grid(levels: int, bucket: int) -> Grid:
    return Grid(levels, _bits(levels), bucket)


def _body_nbytes(size: int, levels: int, bucket: int) -> int:
    return _FIELDS + 4 * -(-size // bucket) + packed_nbytes(size, _bits(levels))


def _fields(body: Bytes, size: int) -> tuple[int, int]:
    """Return levels and bucket of a body. Raises PayloadError unless they and the norms are valid."""
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
    """Return levels and bucket of a body. Raises PayloadError unless the fields, the norms and the length are valid."""
    levels, bucket = _fields(body, size)
    if body.size != _body_nbytes(size, levels, bucket):
        raise PayloadError(f"qsgd: a body of {body.size} bytes cannot hold {size} codes with {levels=}, {bucket=}")
    return levels, bucket


def _views(body: Bytes, size: int, levels: int, bucket: int) -> Body:
    """Return views of the norms and codes in a body of the right length."""
    start = _FIELDS + 4 * -(-size // bucket)
    end = start + size // BLOCK * (BLOCK // 8) * _bits(levels)
    symbols = body[:0]  # read-only if the body is read-only
    return Body(body[_FIELDS:start].view(np.float32), body[start:end].view(np.uint32), body[end:], symbols)
