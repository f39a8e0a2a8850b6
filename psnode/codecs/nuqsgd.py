"""NUQSGD: every coordinate rounded at random, without bias, to 0 or a power of two of its bucket's norm.

In a bucket with norm n the magnitudes are 0, 2^-s n, ..., n / 2, n; a value between two neighbours a < |v| < b goes to b with
probability (|v| - a) / (b - a), which adds (b - |v|)(|v| - a) to the squared error: at most v^2 / 8 from 2^-s n on. So
small values of a long-tailed bucket cost less than on the even levels of qsgd.

    body   uint32 s, uint32 bucket B
           float32 norm of every bucket
           codes of bit_length(2 s + 2) bits, see kernels.planes: 0 for 0, 1 + 2 j + (1 if negative) for +-2^-j n

s = 2^b - 2 makes use of all codes of b + 1 bits: 2, 6, 14, 30, 62.

Buckets of 512 are coded by kernels generated of a formula; larger ones, and payloads of other levels than an instance's own, by
kernels by hand, which heed any settings.

Source: Ramezani-Kebrya, Faghri, Markov, Aksenov, Alistarh, Roy, "NUQSGD: Provably Communication-efficient Data-parallel SGD via
Nonuniform Quantization", JMLR 2021.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from psnode.codecs.arrays import Float64s
from psnode.codecs.base import NOTHING, Bytes, Codes, Floats, Measured, Shape, Sink, Source, Words, readonly
from psnode.codecs.bounds import check_choice, check_integer
from psnode.codecs.kernels import powers as kernels
from psnode.codecs.kernels.finite import INFINITY_BITS, raise_nonfinite
from psnode.codecs.kernels.packed import pack, unpack
from psnode.codecs.kernels.planes import BLOCK, packed_nbytes
from psnode.codecs.kernels.powers import Grid
from psnode.codecs.norm import norm_of_buckets
from psnode.codecs.rng import Draws
from psnode.codecs.rows.codec import Generated, coder_of
from psnode.codecs.rows.coder import Decoder
from psnode.codecs.rows.formula import Formula
from psnode.codecs.rows.known.nuqsgd import NuqsgdRows
from psnode.codecs.sources import Values, leaves_error, operands
from psnode.codecs.stages import Quantiser, Symbols, codes_like
from psnode.codecs.table import number_of
from psnode.codecs.traits import Traits
from psnode.errors import CodecSpecError, PayloadError

MAX_LEVELS = 62
MAX_BUCKET = 2**28
_FIELDS = 8


class _ByHand(NamedTuple):
    """Decoder of a body of any settings: those, and the norms of its buckets."""

    grid: Grid
    norms: Float64s

    def decode(self, body: Bytes, out: Floats, weight: np.float32, adding: bool) -> None:
        """As Decoder.decode."""
        codes = body[_side_nbytes(out.size, self.grid.bucket) :]
        kernels.decode(self.grid, self.norms, codes, out, weight, adding)


@dataclass(frozen=True, repr=False)
class Nuqsgd(Generated, Quantiser):
    """nuqsgd:levels=7,bucket=512,norm=l2.

    `levels`: s, 1..62; the smallest magnitude is 2^-s. `bucket`: coordinates that share a norm, a multiple of 512. `norm`: l2,
    the paper's, or max, which has less variance.
    """

    levels: int = 7
    bucket: int = 512
    norm: Literal["l2", "max"] = "l2"

    id = "nuqsgd"
    traits = Traits(unbiased=True)

    def __post_init__(self) -> None:
        """CodecSpecError for a value out of bounds."""
        check_integer(self, "levels", 1, MAX_LEVELS)
        check_integer(self, "bucket", BLOCK, MAX_BUCKET)
        check_choice(self, "norm", ("l2", "max"))
        if self.bucket % BLOCK:
            raise CodecSpecError(f"nuqsgd: bucket={self.bucket} must be a multiple of {BLOCK}")

    def formula(self) -> Formula | None:
        """NuqsgdRows, of buckets of 512."""
        return NuqsgdRows(self) if self.bucket == BLOCK else None

    def _max_body(self, shape: Shape) -> int:
        size = math.prod(shape)
        return _side_nbytes(size, self.bucket) + packed_nbytes(size, _bits(self.levels))

    def _fuses(self, source: Source, sink: Sink) -> bool:
        if self.bucket == BLOCK:
            return super()._fuses(source, sink)
        return sink is NOTHING or leaves_error(source, sink)

    def _encode(self, source: Source, key: Words, body: Bytes, sink: Sink) -> int:
        if self.bucket == BLOCK:
            return super()._encode(source, key, body, sink)
        x, error = operands(source, sink)
        start, used = _side_nbytes(x.size, self.bucket), self._max_body(x.shape)
        norms = np.empty(-(-x.size // self.bucket))
        kind = kernels.L2 if self.norm == "l2" else kernels.MAX
        draws = Draws(key, number_of(self.id))
        if not kernels.encode(x, _grid(self.levels, self.bucket), kind, norms, draws, body[start:used], error):
            raise_nonfinite(x)
        body[:_FIELDS].view(np.uint32)[:] = self.levels, self.bucket
        body[_FIELDS:start].view(np.float32)[:] = norms
        return used

    def _read(self, body: Bytes, size: int) -> tuple[Decoder, Bytes]:
        levels, bucket, norms = _checked(body, size)
        if (levels, bucket) == (self.levels, self.bucket) and bucket == BLOCK:
            return coder_of(self), body
        return _ByHand(_grid(levels, bucket), norms), body

    def _measure(self, body: Bytes, shape: Shape, room: Floats | None) -> Measured:
        """From the norms of the buckets, which no decoded magnitude exceeds."""
        size = math.prod(shape)
        _, bucket, norms = _checked(body, size)
        return Measured(norm_of_buckets(norms, bucket, size), lambda out, weight: self._decode_add(body, out, weight))

    def _max_symbols(self, size: int) -> tuple[int, int, int]:
        return _side_nbytes(size, self.bucket), size, 2 * self.levels + 3

    def _symbols(self, x: Floats, key: Words) -> Symbols:
        side_nbytes, count, alphabet = self._max_symbols(x.size)
        body, codes = np.empty(self._max_body(x.shape), np.uint8), codes_like(count, alphabet)
        self._encode(Values(x), key, body, NOTHING)
        unpack(body[side_nbytes:], codes, alphabet, self.id)
        return Symbols(body[:side_nbytes], codes, alphabet)

    def _read_side(self, side: Bytes, size: int) -> tuple[int, int]:
        levels, bucket, _ = _fields(side, size)
        if side.size != _side_nbytes(size, bucket):
            raise PayloadError(f"nuqsgd: {side.size} bytes of side information for {size} coordinates with {bucket=}")
        return size, 2 * levels + 3

    def _from_symbols(self, side: Bytes, codes: Codes, out: Floats) -> None:
        levels, _, _ = _fields(side, out.size)
        body = np.empty(side.size + packed_nbytes(out.size, _bits(levels)), np.uint8)
        body[: side.size] = side
        pack(codes, 2 * levels + 3, body[side.size :])
        self._decode(readonly(body), out)


def _bits(levels: int) -> int:
    return (2 * levels + 2).bit_length()


def _grid(levels: int, bucket: int) -> Grid:
    return Grid(levels, _bits(levels), bucket)


def _side_nbytes(size: int, bucket: int) -> int:
    return _FIELDS + 4 * -(-size // bucket)


def _checked(body: Bytes, size: int) -> tuple[int, int, Any]:
    """As _fields, of a body that is valid."""
    levels, bucket, norms = _fields(body, size)
    if body.size != _side_nbytes(size, bucket) + packed_nbytes(size, _bits(levels)):
        raise PayloadError(f"nuqsgd: a body of {body.size} bytes cannot hold {size} codes with {levels=}, {bucket=}")
    return levels, bucket, norms


def _fields(body: Bytes, size: int) -> tuple[int, int, Any]:
    """Levels, bucket and the norms as float64, all of them valid."""
    levels, bucket = body[:_FIELDS].view(np.uint32).tolist() if body.size >= _FIELDS else (0, 0)
    if not 1 <= levels <= MAX_LEVELS or not BLOCK <= bucket <= MAX_BUCKET or bucket % BLOCK:
        raise PayloadError(f"nuqsgd: {levels=}, {bucket=} in a body of {body.size} bytes")
    end = _side_nbytes(size, bucket)
    if body.size < end or int(body[_FIELDS:end].view(np.uint32).max()) >= INFINITY_BITS:
        raise PayloadError("nuqsgd: the norm of a bucket is missing, negative or not finite")
    return levels, bucket, body[_FIELDS:end].view(np.float32).astype(np.float64)
