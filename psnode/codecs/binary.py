"""Base of the codecs with one bit a coordinate: a side of a few numbers, then the signs.

    body   side   a multiple of 4 bytes
           signs  1 bit a coordinate, 1 where it is negative: see psnode.codecs.kernels.signbits; zeros to a whole byte

A zero takes either sign with probability 1/2, as an independent coin falls: over the steps it is pushed neither way.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import NamedTuple

import numpy as np

from psnode.codecs.base import NOTHING, Bytes, Codes, Floats, Measured, Shape, Sink, Source, Words, readonly
from psnode.codecs.kernels.finite import raise_nonfinite
from psnode.codecs.kernels.parts import NO_PARTS, PartTable, reached
from psnode.codecs.kernels.signbits import apply
from psnode.codecs.norm import norm_of_buckets
from psnode.codecs.sources import NO_FLOATS, leaves_error, operands
from psnode.codecs.stages import Quantiser, Symbols
from psnode.errors import PayloadError


class Signed(NamedTuple):
    """Extent of a sweep over an array: `done` coordinates, fewer than all if a value is not finite; x - decoded is there for
    them.

    `later`: it is not, for any coordinate: the levels were known only in the end.
    """

    done: int
    later: bool = False


class Binary(Quantiser):
    """Codes every coordinate by its sign; the decoded value is one of two that its bucket has."""

    @abstractmethod
    def _side_nbytes(self, size: int) -> int:
        """Bytes of side information that encode writes for `size` coordinates."""

    @abstractmethod
    def _sign(self, x: Floats, parts: PartTable, key: Words, side: Bytes, bits: Bytes, error: Floats) -> Signed:
        """Write the side information and the signs of `x` (1-D), to whose memory `parts` are added beforehand.

        x - decoded is written to `error`, which may be the memory of x, or is empty; but for `Signed.later`.
        """

    @abstractmethod
    def _levels(self, side: Bytes, size: int) -> tuple[int, Floats, Floats]:
        """The bucket (at least 1), and for every one the values of negative and of other coordinates. PayloadError."""

    @abstractmethod
    def _split(self, body: Bytes, size: int) -> int:
        """Offset of the signs in a `body` of unknown origin."""

    def _max_body(self, shape: Shape) -> int:
        size = math.prod(shape)
        return self._side_nbytes(size) + -(-size // 8)

    def _fuses(self, source: Source, sink: Sink) -> bool:
        return sink is NOTHING or leaves_error(source, sink)

    def _encode(self, source: Source, key: Words, body: Bytes, sink: Sink) -> int:
        parts = source.table()
        x, error = operands(source, sink)
        used, start = self._max_body(source.shape), self._side_nbytes(x.size)
        side, bits = body[:start], body[start:used]
        signed = self._sign(x, parts, key, side, bits, error)
        if signed.done < x.size:
            source.refuse(reached(parts), self._beginning(side, bits, signed.done if error.size else 0))
        if signed.later and error.size:
            bucket, low, high = self._levels(readonly(side), x.size)
            apply(readonly(bits), bucket, readonly(-low), readonly(-high), x, error)
        return used

    def _beginning(self, side: Bytes, bits: Bytes, size: int) -> Floats:
        """The first `size` decoded values."""
        decoded = np.empty(size, np.float32)
        if size:
            bucket, low, high = self._levels(readonly(side[: self._side_nbytes(size)]), size)
            apply(readonly(bits), bucket, readonly(low), readonly(high), readonly(NO_FLOATS), decoded)
        return decoded

    def _decode(self, body: Bytes, out: Floats) -> None:
        bits, bucket, low, high = self._read(body, out.size)
        apply(bits, bucket, readonly(low), readonly(high), readonly(NO_FLOATS), out.reshape(-1))

    def _decode_add(self, body: Bytes, out: Floats, weight: np.float32) -> None:
        bits, bucket, low, high = self._read(body, out.size)
        flat = out.reshape(-1)
        apply(bits, bucket, readonly(weight * low), readonly(weight * high), readonly(flat), flat)

    def _measure(self, body: Bytes, shape: Shape, room: Floats | None) -> Measured:
        """From the larger of every bucket's two values."""
        size = math.prod(shape)
        _, bucket, low, high = self._read(body, size)
        norm = norm_of_buckets(np.maximum(np.abs(low), np.abs(high)), bucket, size)
        return Measured(norm, lambda out, weight: self._decode_add(body, out, weight))

    def _read(self, body: Bytes, size: int) -> tuple[Bytes, int, Floats, Floats]:
        start = self._split(body, size)
        if body.size != start + -(-size // 8):
            raise PayloadError(f"{self.id}: a body of {body.size} bytes instead of {start + -(-size // 8)}")
        bits = body[start:]
        if size % 8 and int(bits[-1]) >> size % 8:
            raise PayloadError(f"{self.id}: bits follow that of the last coordinate")
        return bits, *self._levels(body[:start], size)

    def _max_symbols(self, size: int) -> tuple[int, int, int]:
        return self._side_nbytes(size), size, 2

    def _symbols(self, x: Floats, key: Words) -> Symbols:
        side = np.empty(self._side_nbytes(x.size), np.uint8)
        bits = np.empty(-(-x.size // 8), np.uint8)
        if self._sign(x, NO_PARTS, key, side, bits, NO_FLOATS).done < x.size:
            raise_nonfinite(x)
        return Symbols(side, np.unpackbits(bits, count=x.size, bitorder="little"), 2)

    def _read_side(self, side: Bytes, size: int) -> tuple[int, int]:
        if side.size != self._split(side, size):
            raise PayloadError(f"{self.id}: {side.size} bytes of side information for {size} coordinates")
        self._levels(side, size)
        return size, 2

    def _from_symbols(self, side: Bytes, codes: Codes, out: Floats) -> None:
        bucket, low, high = self._levels(side, out.size)
        bits = np.packbits(codes, bitorder="little")
        apply(readonly(bits), bucket, readonly(low), readonly(high), readonly(NO_FLOATS), out)
