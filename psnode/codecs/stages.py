"""The roles in a chain `[reducer +] [quantiser] [+ lossless]`, and the methods that each offers the others.

A Reducer (topk, svd, ...) turns an array into side information and a flat float32 vector of values. A FlatCodec
codes any flat float32 vector; a Quantiser can also show its output as symbols of a small alphabet beside side information.
A Lossless stage codes such symbols. All three check their input: PayloadError.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import numpy as np

from psnode.codecs.arrays import Codes
from psnode.codecs.base import Bytes, Codec, Floats, Indices, Measured, Shape, Sink, Source, Words
from psnode.codecs.spec import Stage
from psnode.errors import PayloadError


def padded(nbytes: int) -> int:
    """`nbytes` rounded up to a multiple of 4."""
    return -(-nbytes // 4) * 4


def write_section(body: Bytes, side_nbytes: int) -> int:
    """Finish a length-prefixed section whose content was written to body[4:]; where the next section starts."""
    body[:4].view(np.uint32)[0] = side_nbytes
    end = 4 + padded(side_nbytes)
    body[4 + side_nbytes : end] = 0
    return end


def read_section(body: Bytes) -> tuple[Bytes, Bytes]:
    """The content of the length-prefixed section at the start of `body`, and the rest."""
    if body.size < 4:
        raise PayloadError(f"a body of {body.size} bytes ends inside a length")
    length = int(body[:4].view(np.uint32)[0])
    end = 4 + padded(length)
    if end > body.size or body[4 + length : end].any():
        raise PayloadError(f"a section of {length} bytes does not fit into a body of {body.size}, or is not padded with zeros")
    return body[4 : 4 + length], body[end:]


class Reducer(Codec):
    """A codec that keeps some float32 values of an array: selected coordinates, or the factors of a matrix.

    Alone its body is a section of side information (a length, the bytes, zeros to a multiple of 4) and the
    values as float32; in a chain a quantiser codes the values.
    """

    @abstractmethod
    def _max_parts(self, shape: Shape) -> tuple[int, int]:
        """The most bytes of side information and the most values for an array of `shape`, which is not empty."""

    @abstractmethod
    def _reduce(self, x: Floats, key: Words, side: Bytes) -> tuple[int, Floats]:
        """Write the side information to `side`; its length, and the values (1-D). Raises NonFiniteGradientError."""

    @abstractmethod
    def _count(self, side: Bytes, shape: Shape) -> int:
        """Number of values that belong to `side`. Checks `side` completely, so that _expand cannot fail: PayloadError."""

    @abstractmethod
    def _expand(self, side: Bytes, values: Floats, out: Floats) -> None:
        """Overwrite `out`, of the array's shape, from side information that _count has checked."""

    def _expand_add(self, side: Bytes, values: Floats, out: Floats, weight: np.float32) -> None:
        """Add weight * expanded to `out`, without a dense temporary where that can be."""
        from psnode.codecs.kernels.finite import add_scaled

        dense = np.empty_like(out)
        self._expand(side, values, dense)
        add_scaled(dense.reshape(-1), out.reshape(-1), weight)

    def _support_of(self, side: Bytes, shape: Shape) -> Indices:
        """The flat indices that `side` selects, ascending."""
        return np.arange(math.prod(shape), dtype=np.int64)

    def _max_body(self, shape: Shape) -> int:
        side, values = self._max_parts(shape)
        return 4 + padded(side) + 4 * values

    def _encode(self, source: Source, key: Words, body: Bytes, sink: Sink) -> int:
        x = source.array()
        used, values = self._reduce(x, key, body[4 : 4 + self._max_parts(x.shape)[0]])
        return self.joined(used, values, key, body)

    def joined(self, used: int, values: Floats, key: Words, body: Bytes) -> int:
        """Finish a body whose side information, `used` bytes of it, was written to body[4:]; its length."""
        start = write_section(body, used)
        end = start + 4 * values.size
        body[start:end].view(np.float32)[:] = values
        return end

    def parted(self, body: Bytes, shape: Shape) -> tuple[Bytes, Floats]:
        """Side information and values of a body, checked: PayloadError."""
        side, rest = read_section(body)
        count = self._count(side, shape)
        if rest.size != 4 * count:
            raise PayloadError(f"{self.id}: {rest.size} bytes follow the side information, {count} values need {4 * count}")
        values = rest.view(np.float32)
        check_finite(values, self.id)
        return side, values

    def _decode(self, body: Bytes, out: Floats) -> None:
        self._expand(*self.parted(body, out.shape), out)

    def _decode_add(self, body: Bytes, out: Floats, weight: np.float32) -> None:
        self._expand_add(*self.parted(body, out.shape), out, weight)

    def _measure(self, body: Bytes, shape: Shape, room: Floats | None) -> Measured:
        return self._measure_parts(*self.parted(body, shape), shape) or super()._measure(body, shape, room)

    def _measure_parts(self, side: Bytes, values: Floats, shape: Shape) -> Measured | None:
        """`measure`, given finite values; None if that takes expanding them. Those of a sparse reducer are the decoded ones."""
        if not self.sparse:
            return None
        from psnode.codecs.kernels.norms import norm_of

        self._support_of(side, shape)  # PayloadError if the indices are invalid
        return Measured(norm_of(values, self.id), lambda out, weight: self._expand_add(side, values, out, weight))

    def _support(self, body: Bytes, shape: Shape) -> Indices:
        return self._support_of(self.parted(body, shape)[0], shape)


class Symbols(NamedTuple):
    """Symbols that a quantiser hands to a lossless stage: every code is below `alphabet`, side is a multiple of 4 bytes long."""

    side: Bytes
    codes: Codes
    alphabet: int


class FlatCodec(Codec):
    """A codec of flat float32 vectors, which may follow a reducer."""


class Quantiser(FlatCodec):
    """A codec of flat float32 vectors whose payload is side information and one symbol a coordinate (or a few)."""

    @abstractmethod
    def _max_symbols(self, size: int) -> tuple[int, int, int]:
        """For `size` > 0 values: the most bytes of side information, the number of codes, the size of the alphabet."""

    @abstractmethod
    def _symbols(self, x: Floats, key: Words) -> Symbols:
        """The symbols of `x` (1-D): they decode to exactly the same as _encode's body."""

    @abstractmethod
    def _read_side(self, side: Bytes, size: int) -> tuple[int, int]:
        """The number of codes and the alphabet that belong to `side`, which is checked completely: PayloadError."""

    @abstractmethod
    def _from_symbols(self, side: Bytes, codes: Codes, out: Floats) -> None:
        """Overwrite `out` (1-D) from side information that was checked and codes below the alphabet."""


class Lossless(ABC):
    """A coder of symbols; a frozen dataclass, like a codec. It is a stage of chains, never a codec of its own."""

    id: ClassVar[str]

    def __repr__(self) -> str:
        """The stage's spec string."""
        return str(Stage.of(self.id, self))

    @abstractmethod
    def max_nbytes(self, count: int, alphabet: int) -> int:
        """The most bytes that `compress` writes for `count` > 0 codes below `alphabet` (at most 65536)."""

    @abstractmethod
    def compress(self, codes: Codes, alphabet: int, out: Bytes) -> int:
        """Write the coded symbols, return their length. uint8 codes if alphabet <= 256, else uint16."""

    @abstractmethod
    def expand(self, data: Bytes, codes: Codes, alphabet: int) -> None:
        """Overwrite `codes` from `data`, all of it. PayloadError unless it holds exactly as many codes, each below `alphabet`."""


def check_finite(values: Floats, owner: str) -> None:
    """PayloadError, naming `owner`, unless all values are finite."""
    from psnode.codecs.kernels.finite import all_finite

    if not all_finite(values):
        raise PayloadError(f"{owner}: a value is not finite")


def codes_like(count: int, alphabet: int) -> Codes:
    """An uninitialised array for `count` codes below `alphabet`."""
    return np.empty(count, np.uint8) if alphabet <= 256 else np.empty(count, np.uint16)
