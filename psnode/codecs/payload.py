"""Payload: the bytes that encode returns. They hold everything that decode needs, and traffic is counted in these bytes.

    offset  bytes  field            little-endian
         0      1  format           1
         1      1  stages n         1..5
         2      1  dimensions m     0..8
         3      5  stage numbers    in the order of the spec string; unused bytes are 0
         8    4*m  dimensions       uint32 each; their product, zeros counted as ones, is at most 2**28
    8 + 4m         body             in the codec's format; empty if the array is empty

The length of the header is a multiple of 4 bytes, so that float32 values at the start of the body are aligned.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from psnode.codecs.arrays import Bytes, Shape, Words, checked_buffer
from psnode.codecs.table import NAMES, OUTSIDE, number_of
from psnode.errors import CodecTypeError, CodecValueError, PayloadError

FORMAT = 1
MAX_STAGES = 5
MAX_DIMENSIONS = 8
MAX_COORDINATES = 2**28
_FIXED = 3 + MAX_STAGES


def header_nbytes(ndim: int) -> int:
    """Return the length in bytes of the header of a payload with `ndim` dimensions."""
    return _FIXED + 4 * ndim


def write_header(buffer: Bytes, stages: tuple[str, ...], shape: Shape) -> int:
    """Write the header into `buffer` and return its length."""
    numbers = [number_of(stage) for stage in stages]
    fields = [FORMAT, len(stages), len(shape), *numbers, *[0] * (MAX_STAGES - len(stages))]
    struct.pack_into(f"<{_FIXED}B{len(shape)}I", buffer.data, 0, *fields, *shape)
    return header_nbytes(len(shape))


def check_shape(shape: Shape) -> None:
    """Raise CodecValueError unless an array of `shape` fits into a payload."""
    if len(shape) > MAX_DIMENSIONS:
        raise CodecValueError(f"an array of {len(shape)} dimensions cannot be coded: at most {MAX_DIMENSIONS}, reshape it")
    if math.prod(max(n, 1) for n in shape) > MAX_COORDINATES:
        raise CodecValueError(f"an array of shape {shape} cannot be coded: at most {MAX_COORDINATES} values, cut it")


class RandomSource(Protocol):
    """A source of the random key for encode: a numpy Generator or a psnode.codecs.rng.Key."""

    def integers(self, low: int, *, size: int, dtype: type[np.uint64]) -> Any:
        """Return `size` words, uniformly distributed in 0..low-1."""
        ...


class Format(Protocol):
    """The properties of a codec that determine the layout of its payloads."""

    @property
    def stages(self) -> tuple[str, ...]:
        """The ids of the stages, as the header lists them."""
        ...

    def max_nbytes(self, shape: Shape) -> int:
        """Return the largest possible length in bytes of a payload of an array of `shape`, header included."""
        ...


class Payload:
    """A coded array: header and body in one contiguous buffer, copied only where necessary."""

    __slots__ = ("_bytes", "shape", "stages")

    shape: Shape
    stages: tuple[str, ...]

    def __init__(self, data: Bytes) -> None:
        """Wrap `data`, which holds header and body: 1-D uint8, contiguous, aligned to 4 bytes.

        Raises PayloadError if the header is not valid.
        """
        self.stages, self.shape = _read_header(data)
        view = data.view()
        view.flags.writeable = False
        self._bytes = view

    @classmethod
    def from_bytes(cls, buffer: bytes | bytearray | memoryview | Bytes) -> Payload:
        """Return the payload in `buffer`, without a copy if `buffer` starts at a multiple of 4 bytes.

        The header and its stage numbers are checked. The body is checked only by decode. Raises PayloadError, and
        CodecTypeError for a `buffer` that is not contiguous bytes.
        """
        try:
            data = np.frombuffer(buffer, np.uint8)
        except (TypeError, ValueError, BufferError) as error:
            raise CodecTypeError(f"a payload is made from contiguous bytes, not from this {type(buffer).__name__}") from error
        if data.ctypes.data % 4:
            data = data.copy()
        return cls(data)

    @property
    def size(self) -> int:
        """Number of coordinates of the coded array."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Length in bytes, header included."""
        return self._bytes.size

    @property
    def data(self) -> Bytes:
        """Read-only view of header and body."""
        return self._bytes

    @property
    def body(self) -> Bytes:
        """Read-only view of the bytes after the header."""
        return self._bytes[header_nbytes(len(self.shape)) :]

    def to_bytes(self) -> bytes:
        """Return a copy of header and body."""
        return self._bytes.tobytes()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Payload) and np.array_equal(self._bytes, other._bytes)

    def __hash__(self) -> int:
        return hash(self.to_bytes())

    def __repr__(self) -> str:
        return f"<Payload {'+'.join(self.stages)} of shape {self.shape}, {self.nbytes} bytes>"


def assemble(
    codec: Format, shape: Shape, rng: RandomSource | None, write: Callable[[Words, Bytes], int], out: Bytes | None = None
) -> Payload:
    """Draw a key of two words from `rng` and return the payload of an array of `shape`, whose body `write` fills.

    If `rng` is None, the operating system's random numbers are used, as in np.random.default_rng(). `write(key, body)` fills
    `body`, which has room for the longest possible body, and returns the body's length. `write` is not called for an empty
    array. The payload is written to `out` (uint8, aligned to 4 bytes, at least max_nbytes(shape) long), or else to a new
    buffer. Raises CodecTypeError, CodecValueError.
    """
    check_shape(shape)
    key = np.asarray((np.random.default_rng() if rng is None else rng).integers(2**64, size=2, dtype=np.uint64))
    limit = codec.max_nbytes(shape)
    buffer = np.empty(limit, np.uint8) if out is None else checked_buffer(out, limit)
    used = write_header(buffer, codec.stages, shape)
    if math.prod(shape):
        used += write(key, buffer[used:limit])
    if out is None and used < 0.75 * limit:
        buffer = buffer[:used].copy()
    return Payload(buffer[:used])


def body_of(codec: Format, payload: Payload, size: int | None = None) -> Bytes:
    """Return the body of a payload that `codec` can decode, without checking the body's contents.

    Raises CodecTypeError if `payload` is not a Payload. Raises PayloadError if its stages differ from those of `codec`, or if
    `size` is given and the payload has another number of values.
    """
    if not isinstance(payload, Payload):
        raise CodecTypeError(f"decode takes a Payload, not {type(payload).__name__}: use Payload.from_bytes")
    if payload.stages != codec.stages:
        raise PayloadError(f"a payload of {'+'.join(payload.stages)} was handed to {'+'.join(codec.stages)}")
    body = payload.body
    if not payload.size and body.size:
        raise PayloadError(f"a payload of an empty array has {body.size} bytes after its header")
    if size is not None and payload.size != size:
        raise PayloadError(f"a payload of {payload.size} values, shape {payload.shape}, where {size} are expected")
    return body


def _read_header(data: Bytes) -> tuple[tuple[str, ...], Shape]:
    if data.size < _FIXED:
        raise PayloadError(f"a payload of {data.size} bytes is shorter than its header")
    version, count, ndim, *numbers = data[:_FIXED].tolist()
    if version != FORMAT:
        raise PayloadError(f"payload format {version} is not known: this program reads format {FORMAT}")
    if not 1 <= count <= MAX_STAGES or any(numbers[count:]):
        raise PayloadError(f"a payload has 1 to {MAX_STAGES} stages and zeros after them, not {count} of {numbers}")
    if ndim > MAX_DIMENSIONS or data.size < header_nbytes(ndim):
        raise PayloadError(f"a payload of {data.size} bytes cannot have {ndim} dimensions")
    for number in numbers[:count]:
        if number not in NAMES:
            hint = ": it is a codec's from outside psnode, psnode.codecs.register that first" if number in OUTSIDE else ""
            raise PayloadError(f"payload stage {number} is not known{hint or f': this program knows {sorted(NAMES.values())}'}")
    shape = struct.unpack_from(f"<{ndim}I", data.data, _FIXED)
    if math.prod(max(n, 1) for n in shape) > MAX_COORDINATES:
        raise PayloadError(f"a payload of shape {shape} exceeds {MAX_COORDINATES} coordinates")
    return tuple(NAMES[number] for number in numbers[:count]), shape
