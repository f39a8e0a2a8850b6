"""NUQSGD: every coordinate is rounded at random, without bias, to 0 or to its bucket's norm times a power of two.

In a bucket with norm n the decoded magnitudes are 0, 2^-s n, ..., n / 2, n. If a < |v| < b for two neighbours a, b among them,
a value v is rounded to magnitude b with probability (|v| - a) / (b - a), otherwise to a. Its expected squared error is (b -
|v|)(|v| - a), which is at most v^2 / 8 if |v| >= 2^-s n. The small values of a long-tailed bucket therefore have less error
than on the equidistant levels of qsgd.

    body   uint32 s, uint32 bucket B
           float32 norm of every bucket
           codes of bit_length(2 s + 2) bits, see kernels.planes: 0 for 0, 1 + 2 j + (1 if negative) for +-2^-j n

If s is 2^b - 2 for an integer b, nearly all codes of b + 1 bits are used. These s are 2, 6, 14, 30, 62.

In a bucket of more than 512 coordinates, each row of 512 is coded like a bucket of 512 with the norm of the whole bucket. If
the levels of a payload differ from those of the decoding instance, an interpreter decodes it, so that no payload of a peer
causes a compilation.

Source: Ramezani-Kebrya, Faghri, Markov, Aksenov, Alistarh, Roy, "NUQSGD: Provably Communication-efficient Data-parallel SGD via
Nonuniform Quantization", JMLR 2021.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np

from psnode.codecs.base import NOTHING, Bytes, Codes, Floats, Measured, Shape, Sink, Source, Words, readonly
from psnode.codecs.bounds import check_choice, check_integer
from psnode.codecs.kernels.finite import INFINITY_BITS, raise_nonfinite
from psnode.codecs.kernels.norms import norm_of_buckets, norms_of
from psnode.codecs.kernels.packed import pack, unpack
from psnode.codecs.kernels.planes import BLOCK, packed_nbytes
from psnode.codecs.rows.codec import Generated, coder_of, interpreted
from psnode.codecs.rows.coder import Coder, Decoder, SumCoder
from psnode.codecs.rows.compiled import compiled
from psnode.codecs.rows.formula import Formula, program_of, rows_of
from psnode.codecs.rows.known.nuqsgd import NuqsgdRows
from psnode.codecs.rows.numba.text import text_of
from psnode.codecs.sources import Values, leaves_error, operands
from psnode.codecs.stages import Quantiser, Symbols, codes_like
from psnode.codecs.traits import Traits
from psnode.errors import CodecSpecError, PayloadError

MAX_LEVELS = 62
MAX_BUCKET = 2**28
_FIELDS = 8


class _BucketDecoder(NamedTuple):
    """Decoder of a body with buckets of more than 512 coordinates: `rows` rows of 512 per bucket.

    `coder` decodes the same levels in buckets of 512.
    """

    coder: Coder
    rows: int

    def decode(self, body: Bytes, out: Floats, weight: np.float32, adding: bool) -> None:
        """Decode `body` as Decoder.decode describes."""
        start = _side_nbytes(out.size, self.rows * BLOCK)
        fields, norms = body[:_FIELDS], _repeated(body[_FIELDS:start].view(np.float32), self.rows, out.size)
        self.coder.decode(readonly(np.concatenate([fields, norms.view(np.uint8), body[start:]])), out, weight, adding)


@dataclass(frozen=True, repr=False)
class Nuqsgd(Generated, Quantiser):
    """nuqsgd:levels=7,bucket=512,norm=l2.

    `levels`: s, 1..62; the smallest non-zero magnitude is 2^-s times the norm. `bucket`: the number of coordinates that share a
    norm, a multiple of 512. `norm`: l2, as in the paper, or max, which has less variance.

    A magnitude that is the norm times a power of two is decoded exactly:

    >>> from psnode.codecs import get_codec
    >>> codec, x = get_codec("nuqsgd:norm=max"), np.array([0.25, -4, 0, 2], np.float32)
    >>> codec.decode(codec.encode(x, np.random.default_rng(1))).tolist()
    [0.25, -4.0, 0.0, 2.0]
    """

    levels: int = 7
    bucket: int = 512
    norm: Literal["l2", "max"] = "l2"

    id = "nuqsgd"
    traits = Traits(unbiased=True)

    def __post_init__(self) -> None:
        """Raise CodecSpecError for a value out of bounds."""
        check_integer(self, "levels", 1, MAX_LEVELS)
        check_integer(self, "bucket", BLOCK, MAX_BUCKET)
        check_choice(self, "norm", ("l2", "max"))
        if self.bucket % BLOCK:
            raise CodecSpecError(f"nuqsgd: bucket={self.bucket} must be a multiple of {BLOCK}")

    def formula(self) -> Formula | None:
        """Return the formula of the codec's kernels, NuqsgdRows, if buckets have 512 coordinates, else None."""
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
        start, used, rows = _side_nbytes(x.size, self.bucket), self._max_body(x.shape), self.bucket // BLOCK
        norms = body[_FIELDS:start].view(np.float32)
        if not norms_of(x, self.bucket, self.norm == "l2", norms):
            raise_nonfinite(x)
        coder, codes = _coder_of_rows(self), _side_nbytes(x.size, BLOCK)
        coded = np.empty(coder.program.nbytes(x.size), np.uint8)
        coded[_FIELDS:codes].view(np.float32)[:] = _repeated(norms, rows, x.size)
        coder.encode(x, key, coded, error)
        body[:_FIELDS].view(np.uint32)[:] = self.levels, self.bucket
        body[start:used] = coded[codes:]
        return used

    def _read(self, body: Bytes, size: int) -> tuple[Decoder, Bytes]:
        levels, bucket, _ = _checked(body, size)
        of_rows = Nuqsgd(levels, norm=self.norm)
        coder = coder_of(of_rows) if levels == self.levels else interpreted(of_rows)
        return coder if bucket == BLOCK else _BucketDecoder(coder, bucket // BLOCK), body

    def _measure(self, body: Bytes, shape: Shape, room: Floats | None) -> Measured:
        """Return an upper bound of the norm, from the norms of the buckets, which no decoded magnitude exceeds."""
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


@lru_cache(maxsize=64)
def _coder_of_rows(codec: Nuqsgd) -> SumCoder:
    """Return a coder of rows of 512 that reads the norms from the body, which must have the layout for buckets of 512."""
    made = program_of(NuqsgdRows(codec))
    return SumCoder(made, compiled(text_of(made)))


def _repeated(norms: Floats, rows: int, size: int) -> Floats:
    """Return the norm of every row, given the norms of the buckets, which have `rows` rows each."""
    return np.repeat(norms, rows)[: rows_of(size)]


def _side_nbytes(size: int, bucket: int) -> int:
    return _FIELDS + 4 * -(-size // bucket)


def _checked(body: Bytes, size: int) -> tuple[int, int, Any]:
    """Return levels, bucket and norms of a body, as `_fields` does. Raises PayloadError unless they and the length are valid."""
    levels, bucket, norms = _fields(body, size)
    if body.size != _side_nbytes(size, bucket) + packed_nbytes(size, _bits(levels)):
        raise PayloadError(f"nuqsgd: a body of {body.size} bytes cannot hold {size} codes with {levels=}, {bucket=}")
    return levels, bucket, norms


def _fields(body: Bytes, size: int) -> tuple[int, int, Any]:
    """Return levels, bucket and norms (float64) of a body. Raises PayloadError unless all of these are valid."""
    levels, bucket = body[:_FIELDS].view(np.uint32).tolist() if body.size >= _FIELDS else (0, 0)
    if not 1 <= levels <= MAX_LEVELS or not BLOCK <= bucket <= MAX_BUCKET or bucket % BLOCK:
        raise PayloadError(f"nuqsgd: {levels=}, {bucket=} in a body of {body.size} bytes")
    end = _side_nbytes(size, bucket)
    if body.size < end or int(body[_FIELDS:end].view(np.uint32).max()) >= INFINITY_BITS:
        raise PayloadError("nuqsgd: the norm of a bucket is missing, negative or not finite")
    return levels, bucket, body[_FIELDS:end].view(np.float32).astype(np.float64)
