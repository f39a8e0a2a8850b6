"""Base classes of the stages of a chain `[reducer +] quantiser [+ lossless]`, with the methods by which stages work together.

A Reducer (topk, svd, ...) turns an array into side information and a flat float32 vector of values. A FlatCodec encodes any
flat float32 vector. A Quantiser is a FlatCodec that can also return its output as side information and symbols of a small
alphabet. A Lossless stage compresses the symbols. When decoding, each stage checks its input and raises PayloadError if it is
invalid.
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
    """Return `nbytes` rounded up to a multiple of 4."""
    return -(-nbytes // 4) * 4


def write_section(body: Bytes, side_nbytes: int) -> int:
    """Complete a section whose content, `side_nbytes` long, is already in body[4:]. Return the offset of the section's end.

    A section is a uint32 length, the content, and zeros up to a multiple of 4 bytes.
    """
    body[:4].view(np.uint32)[0] = side_nbytes
    end = 4 + padded(side_nbytes)
    body[4 + side_nbytes : end] = 0
    return end


def read_section(body: Bytes) -> tuple[Bytes, Bytes]:
    """Return the content of the section at the start of `body`, and the bytes after that section. Raises PayloadError."""
    if body.size < 4:
        raise PayloadError(f"a body of {body.size} bytes ends inside a length")
    length = int(body[:4].view(np.uint32)[0])
    end = 4 + padded(length)
    if end > body.size or body[4 + length : end].any():
        raise PayloadError(f"a section of {length} bytes does not fit into a body of {body.size}, or is not padded with zeros")
    return body[4 : 4 + length], body[end:]


class Reducer(Codec):
    """A codec that reduces an array to a shorter float32 vector: selected coordinates, or factors of a matrix.

    The body consists of a section with the side information (see write_section) and of the values. The values are float32 or, in
    a chain, the output of the quantiser.
    """

    @abstractmethod
    def _max_parts(self, shape: Shape) -> tuple[int, int]:
        """Return the largest length in bytes of side information, and the largest number of values.

        They are those of a non-empty array of `shape`.
        """

    @abstractmethod
    def _reduce(self, x: Floats, key: Words, side: Bytes) -> tuple[int, Floats]:
        """Write the side information to `side`. Return its length and the values (1-D). Raises NonFiniteGradientError."""

    @abstractmethod
    def _count(self, side: Bytes, shape: Shape) -> int:
        """Return the number of values that belong to `side`. Raises PayloadError if `side` is not valid.

        If _count does not raise for an invalid `side`, _expand must raise before it writes anything.
        """

    @abstractmethod
    def _expand(self, side: Bytes, values: Floats, out: Floats) -> None:
        """Overwrite `out`, which has the array's shape, with the array that `values` and `side` represent.

        _count has checked `side`.
        """

    def _expand_add(self, side: Bytes, values: Floats, out: Floats, weight: np.float32) -> None:
        """Add weight times the expanded array to `out`. Subclasses override this method if they need no dense temporary array."""
        from psnode.codecs.kernels.finite import add_scaled

        dense = np.empty_like(out)
        self._expand(side, values, dense)
        add_scaled(dense.reshape(-1), out.reshape(-1), weight)

    def _support_of(self, side: Bytes, shape: Shape) -> Indices:
        """Return the flat indices that `side` selects, ascending."""
        return np.arange(math.prod(shape), dtype=np.int64)

    def _max_body(self, shape: Shape) -> int:
        side, values = self._max_parts(shape)
        return 4 + padded(side) + 4 * values

    def _encode(self, source: Source, key: Words, body: Bytes, sink: Sink) -> int:
        x = source.array()
        used, values = self._reduce(x, key, body[4 : 4 + self._max_parts(x.shape)[0]])
        return self.joined(used, values, key, body)

    def joined(self, used: int, values: Floats, key: Words, body: Bytes) -> int:
        """Complete a body whose side information, `used` bytes, is already in body[4:]. Return the body's length."""
        start = write_section(body, used)
        end = start + 4 * values.size
        body[start:end].view(np.float32)[:] = values
        return end

    def parted(self, body: Bytes, shape: Shape) -> tuple[Bytes, Floats]:
        """Return the checked side information and values of a body. Raises PayloadError."""
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
        """Return the result of `measure` for finite `values`, or None if only expanding the values would give the norm.

        The values of a sparse reducer are the decoded entries, so that their norm equals the norm of the decoded array.
        """
        if not self.sparse:
            return None
        from psnode.codecs.kernels.norms import norm_of

        self._support_of(side, shape)  # raises PayloadError if the indices are not valid
        return Measured(norm_of(values, self.id), lambda out, weight: self._expand_add(side, values, out, weight))

    def _support(self, body: Bytes, shape: Shape) -> Indices:
        return self._support_of(self.parted(body, shape)[0], shape)


class Symbols(NamedTuple):
    """A quantiser's output for a lossless stage: codes below `alphabet`, and the side information `side`.

    The length of `side` is a multiple of 4 bytes.
    """

    side: Bytes
    codes: Codes
    alphabet: int


class FlatCodec(Codec):
    """A codec that encodes any flat float32 vector and can therefore follow a reducer."""


class Quantiser(FlatCodec):
    """A codec of flat float32 vectors whose output can be written as side information and about one symbol per coordinate."""

    @abstractmethod
    def _max_symbols(self, size: int) -> tuple[int, int, int]:
        """Return upper bounds for `size` > 0 values: bytes of side information, number of codes, and size of the alphabet."""

    @abstractmethod
    def _symbols(self, x: Floats, key: Words) -> Symbols:
        """Return the symbols of `x` (1-D). They decode to the same bits as the body that _encode writes."""

    @abstractmethod
    def _read_side(self, side: Bytes, size: int) -> tuple[int, int]:
        """Check `side` completely and return the number of codes and the size of the alphabet. Raises PayloadError."""

    @abstractmethod
    def _from_symbols(self, side: Bytes, codes: Codes, out: Floats) -> None:
        """Overwrite `out` (1-D) with the values that `side`, which _read_side has checked, and the codes represent."""


class Lossless(ABC):
    """A lossless coder of symbols; a frozen dataclass.

    It is the last stage of a chain and cannot be used as a codec by itself.
    """

    id: ClassVar[str]

    def __repr__(self) -> str:
        """Return the stage's spec string."""
        return str(Stage.of(self.id, self))

    @abstractmethod
    def max_nbytes(self, count: int, alphabet: int) -> int:
        """Return the largest number of bytes that `compress` writes for `count` > 0 codes below `alphabet` (at most 65536)."""

    @abstractmethod
    def compress(self, codes: Codes, alphabet: int, out: Bytes) -> int:
        """Write the compressed `codes` (uint8 if alphabet <= 256, else uint16) to `out`. Return the number of bytes."""

    @abstractmethod
    def expand(self, data: Bytes, codes: Codes, alphabet: int) -> None:
        """Overwrite `codes` with the codes that `data` holds.

        PayloadError unless it holds codes.size codes, each below `alphabet`.
        """


def check_finite(values: Floats, owner: str) -> None:
    """Raise a PayloadError that names `owner` unless all values are finite."""
    from psnode.codecs.kernels.finite import all_finite

    if not all_finite(values):
        raise PayloadError(f"{owner}: a value is not finite")


def codes_like(count: int, alphabet: int) -> Codes:
    """Return an uninitialised array for `count` codes below `alphabet`: uint8 if alphabet <= 256, else uint16."""
    return np.empty(count, np.uint8) if alphabet <= 256 else np.empty(count, np.uint16)
