"""Payload: the self-contained bytes that encode returns, counted as traffic.

    offset  bytes  field            little-endian
         0      1  format           1
         1      1  stages n         1..5
         2      1  dimensions m     0..8
         3      5  stage numbers    in the order of the spec string; unused ones are 0
         8    4*m  dimensions       uint32 each; their product, zeros counted as ones, is at most 2**28
    8 + 4m         body             the codec's own; empty if the array is

The header is a multiple of 4 bytes long, so a body that starts with float32 values is aligned.
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
    """Length of the header of a payload with `ndim` dimensions."""
    return _FIXED + 4 * ndim


def write_header(buffer: Bytes, stages: tuple[str, ...], shape: Shape) -> int:
    """Write the header into `buffer` and return its length."""
    numbers = [number_of(stage) for stage in stages]
    fields = [FORMAT, len(stages), len(shape), *numbers, *[0] * (MAX_STAGES - len(stages))]
    struct.pack_into(f"<{_FIXED}B{len(shape)}I", buffer.data, 0, *fields, *shape)
    return header_nbytes(len(shape))


def check_shape(shape: Shape) -> None:
    """CodecValueError unless an array of `shape` fits into a payload."""
    if len(shape) > MAX_DIMENSIONS:
        raise CodecValueError(f"an array of {len(shape)} dimensions cannot be coded: at most {MAX_DIMENSIONS}, reshape it")
    if math.prod(max(n, 1) for n in shape) > MAX_COORDINATES:
        raise CodecValueError(f"an array of shape {shape} cannot be coded: at most {MAX_COORDINATES} values, cut it")


class RandomSource(Protocol):
    """Source of the key of encode: a numpy Generator, or psnode.codecs.rng.Key."""

    def integers(self, low: int, *, size: int, dtype: type[np.uint64]) -> Any:
        """`size` words uniform in 0..low-1."""
        ...


class Format(Protocol):
    """The properties of a codec that the layout of its payloads depends on."""

    @property
    def stages(self) -> tuple[str, ...]:
        """The ids in the header."""
        ...

    def max_nbytes(self, shape: Shape) -> int:
        """The most bytes a payload of an array of `shape` has, header included."""
        ...


class Payload:
    """One coded array: header and body in one contiguous buffer, never copied without need."""

    __slots__ = ("_bytes", "shape", "stages")

    shape: Shape
    stages: tuple[str, ...]

    def __init__(self, data: Bytes) -> None:
        """`data`: 1-D uint8, contiguous, 4-aligned, header included. PayloadError if the header is not valid."""
        self.stages, self.shape = _read_header(data)
        view = data.view()
        view.flags.writeable = False
        self._bytes = view

    @classmethod
    def from_bytes(cls, buffer: bytes | bytearray | memoryview | Bytes) -> Payload:
        """The payload that lies in `buffer`, not copied if it starts at a multiple of 4 bytes.

        Checks the header and the ids in it; the body is checked by decode. Raises PayloadError.
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
        """Length in bytes on the wire, header included."""
        return self._bytes.size

    @property
    def data(self) -> Bytes:
        """Header and body, a read-only view."""
        return self._bytes

    @property
    def body(self) -> Bytes:
        """The bytes after the header, a read-only view."""
        return self._bytes[header_nbytes(len(self.shape)) :]

    def to_bytes(self) -> bytes:
        """Header and body, a copy."""
        return self._bytes.tobytes()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Payload) and np.array_equal(self._bytes, other._bytes)

    def __hash__(self) -> int:
        return hash(self.to_bytes())

    def __repr__(self) -> str:
        return f"<Payload {'+'.join(self.stages)} of shape {self.shape}, {self.nbytes} bytes>"


def assemble(
    codec: Format, shape: Shape, rng: RandomSource, write: Callable[[Words, Bytes], int], out: Bytes | None = None
) -> Payload:
    """The payload of an array of `shape` whose body `write` fills, from a key of two words drawn from `rng`.

    `write(key, body)` returns the length; `body` has room for the longest. It is not called for an empty array. `out` (uint8,
    starting at a multiple of 4 bytes, max_nbytes(shape) long or longer) is where the payload is written, else a new buffer.
    Raises CodecTypeError, CodecValueError.
    """
    check_shape(shape)
    key = np.asarray(rng.integers(2**64, size=2, dtype=np.uint64))
    limit = codec.max_nbytes(shape)
    buffer = np.empty(limit, np.uint8) if out is None else checked_buffer(out, limit)
    used = write_header(buffer, codec.stages, shape)
    if math.prod(shape):
        used += write(key, buffer[used:limit])
    if out is None and used < 0.75 * limit:
        buffer = buffer[:used].copy()
    return Payload(buffer[:used])


def body_of(codec: Format, payload: Payload, size: int | None = None) -> Bytes:
    """The body of a payload that `codec` can decode, of `size` values if that is given; nothing in the body is checked.

    Raises CodecTypeError for anything but a payload, and PayloadError for one of other stages or of another size.
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
            hint = ": it is a codec's from outside psnode, load that first" if number in OUTSIDE else ""
            raise PayloadError(f"payload stage {number} is not known{hint or f': this program knows {sorted(NAMES.values())}'}")
    shape = struct.unpack_from(f"<{ndim}I", data.data, _FIXED)
    if math.prod(max(n, 1) for n in shape) > MAX_COORDINATES:
        raise PayloadError(f"a payload of shape {shape} exceeds {MAX_COORDINATES} coordinates")
    return tuple(NAMES[number] for number in numbers[:count]), shape
