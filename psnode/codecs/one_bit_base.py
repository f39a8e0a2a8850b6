"""Base class of the codecs that send one bit per coordinate: side information of a few numbers, then the signs.

    body   side information   a multiple of 4 bytes
           signs              1 bit per coordinate, 1 if negative, see psnode.codecs.kernels.sign; zeros to a whole byte

The sign of a zero is drawn at random, with probability 1/2 for each sign, so that a zero moves in neither direction on average.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import NamedTuple

import numpy as np

from psnode.codecs.base import NOTHING, Bytes, Codes, Floats, Measured, Shape, Words, readonly
from psnode.codecs.kernels.norms import norm_of_buckets
from psnode.codecs.kernels.sign import apply
from psnode.codecs.rows.codec import Generated, coder_of
from psnode.codecs.rows.coder import Decoder
from psnode.codecs.sources import NO_FLOATS, Values
from psnode.codecs.stages import Quantiser, Symbols
from psnode.errors import PayloadError


class Levels(NamedTuple):
    """Decoded values of each bucket, and the size `bucket` of the buckets, at least 1.

    `low`: the decoded value of each bucket's negative coordinates. `high`: the decoded value of its other coordinates.
    """

    bucket: int
    low: Floats
    high: Floats


class _InBuckets(NamedTuple):
    """Decoder of a body whose signs start at byte `start`; every bucket has the two values in `levels`."""

    start: int
    levels: Levels

    def decode(self, body: Bytes, out: Floats, weight: np.float32, adding: bool) -> None:
        """Decode `body` as Decoder.decode describes."""
        bucket, low, high = self.levels
        if adding:
            low, high = weight * low, weight * high
        apply(body[self.start :], bucket, readonly(low), readonly(high), readonly(out if adding else NO_FLOATS), out)


class Binary(Generated, Quantiser):
    """A codec that sends only the sign of each coordinate; the sign selects one of the two values of the coordinate's bucket."""

    @abstractmethod
    def _side_nbytes(self, size: int) -> int:
        """Return the number of bytes of side information that encode writes for `size` coordinates."""

    @abstractmethod
    def _levels(self, side: Bytes, size: int) -> Levels:
        """Return the two values of every bucket, read from `side`. Raises PayloadError."""

    @abstractmethod
    def _split(self, body: Bytes, size: int) -> int:
        """Return the offset of the signs in a `body` that has not been checked. Raises PayloadError."""

    def _max_body(self, shape: Shape) -> int:
        size = math.prod(shape)
        return self._side_nbytes(size) + -(-size // 8)

    def _measure(self, body: Bytes, shape: Shape, room: Floats | None) -> Measured:
        """Return an upper bound of the norm, from the larger magnitude of each bucket's two values."""
        size = math.prod(shape)
        bucket, low, high = self._checked(body, size).levels
        norm = norm_of_buckets(np.maximum(np.abs(low), np.abs(high)), bucket, size)
        return Measured(norm, lambda out, weight: self._decode_add(body, out, weight))

    def _read(self, body: Bytes, size: int) -> tuple[Decoder, Bytes]:
        found = self._checked(body, size)
        by_formula = self.formula() is not None and found.levels.bucket >= size
        return coder_of(self) if by_formula else found, body

    def _checked(self, body: Bytes, size: int) -> _InBuckets:
        start = self._split(body, size)
        if body.size != start + -(-size // 8):
            raise PayloadError(f"{self.id}: a body of {body.size} bytes instead of {start + -(-size // 8)}")
        if size % 8 and int(body[-1]) >> size % 8:
            raise PayloadError(f"{self.id}: bits follow that of the last coordinate")
        return _InBuckets(start, self._levels(body[:start], size))

    def _max_symbols(self, size: int) -> tuple[int, int, int]:
        return self._side_nbytes(size), size, 2

    def _symbols(self, x: Floats, key: Words) -> Symbols:
        body, start = np.empty(self._max_body(x.shape), np.uint8), self._side_nbytes(x.size)
        self._encode(Values(x), key, body, NOTHING)
        return Symbols(body[:start], np.unpackbits(body[start:], count=x.size, bitorder="little"), 2)

    def _read_side(self, side: Bytes, size: int) -> tuple[int, int]:
        if side.size != self._split(side, size):
            raise PayloadError(f"{self.id}: {side.size} bytes of side information for {size} coordinates")
        self._levels(side, size)
        return size, 2

    def _from_symbols(self, side: Bytes, codes: Codes, out: Floats) -> None:
        self._decode(readonly(np.concatenate([side, np.packbits(codes, bitorder="little")])), out)
