"""Codec: a pure pair encode / decode over one float32 array, and what every codec has in common.

A codec is a frozen dataclass whose fields are its configuration; it has no other state. Its subclass writes
the hooks at the end of the class: they see C-contiguous arrays that were checked, and never an empty one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

from psnode.codecs import spec
from psnode.codecs.arguments import Parts, check_contiguous, check_error, check_parts, checked_buffer, checked_target, in_c_order
from psnode.codecs.payload import Bytes, Payload, Shape, check_shape, header_nbytes, write_header
from psnode.errors import CodecError, CodecTypeError, PayloadError

Floats = npt.NDArray[np.float32]
Words = npt.NDArray[np.uint64]
Indices = npt.NDArray[np.int64]

Array = TypeVar("Array", bound=npt.NDArray[Any])

__all__ = [
    "Bytes", "Codec", "Floats", "Indices", "Measured", "Parts", "Payload", "RandomSource", "Shape", "Words", "readonly",
]  # fmt: skip


class RandomSource(Protocol):
    """What encode draws its key from: a numpy Generator, or psnode.codecs.rng.Key."""

    def integers(self, low: int, *, size: int, dtype: type[np.uint64]) -> Any:
        """`size` words uniform in 0..low-1."""
        ...


class Measured(NamedTuple):
    """A payload that was checked completely. `add(out, weight)` is decode_add without another check; `out` may be flat.

    `norm`: the L2 norm of what it decodes to; where the payload has scales, the largest that they permit; of a linear sketch the
    norm of its cells. No decoded value is larger.
    """

    norm: float
    add: Callable[[Floats, np.float32], None]


class Codec(ABC):
    """encode(x) -> Payload; decode(payload) -> x or an approximation of it.

    Bytes, decoded values and errors are functions of x, the configuration and the two words drawn from rng,
    equal on every machine (svd: encode only per machine and library version).
    """

    id: ClassVar[str]

    @property
    def unbiased(self) -> bool:
        """Whether E decode(encode(x)) = x for every x."""
        return False

    @property
    def lossless(self) -> bool:
        """Whether decode(encode(x)) = x, bit for bit."""
        return False

    @property
    def linear(self) -> bool:
        """Whether payloads that were encoded under one key can be summed undecoded, by `merge`."""
        return False

    @property
    def decodes_linearly(self) -> bool:
        """Whether a merged payload decodes to the sum of what its parts decode to, but for rounding; linear codecs only."""
        return False

    @property
    def shaped(self) -> bool:
        """Whether the result depends on the shape of x and not on its values in order alone."""
        return False

    @property
    def one_scale(self) -> bool:
        """Whether all of x shares a scale or levels, so that tensors of unlike magnitudes are better coded one by one."""
        return False

    @property
    def sparse(self) -> bool:
        """Whether decode_add touches only the coordinates in `support`."""
        return False

    @property
    def adds_finite(self) -> bool:
        """Whether encode_parts undoes what it has added where a part is not finite."""
        return False

    @property
    def keeps_values(self) -> bool:
        """Whether what is decoded are values of x as they were, so that adding them to x - decoded gives x again."""
        return False

    @property
    def refit(self) -> int:
        """For how many steps of training what `fit` found serves; 1: every array is coded by itself."""
        return 1

    @property
    def adaptive(self) -> bool:
        """Whether payloads are so much smaller on the arrays meant for the codec that `max_nbytes` says little of them."""
        return False

    @property
    def stages(self) -> tuple[str, ...]:
        """The ids that this codec's payloads carry."""
        return (self.id,)

    def __repr__(self) -> str:
        """The spec string that get_codec turns into an equal codec."""
        return spec.show(self.id, self)

    def encode(self, x: Floats, rng: RandomSource, *, error: Floats | None = None, out: Bytes | None = None) -> Payload:
        """Code `x` (float32, any shape of at most 8 dimensions and 2**28 values), drawing two words from `rng`.

        `error` (float32, the shape of x; may be x itself) receives x - decode(payload). `out` (uint8, starting at a
        multiple of 4 bytes, max_nbytes(x.shape) long or longer) is where the payload is written; it is then a view.
        Raises NonFiniteGradientError (`error` is undefined then), CodecTypeError, CodecValueError.
        """
        source = in_c_order(x, "x")
        if error is None:
            return self._payload(x.shape, rng, out, lambda key, body: self._encode(readonly(source), key, body))
        check_error(error, x.shape)
        return self._payload(x.shape, rng, out, lambda key, body: self._with_error(source, key, body, error))

    def encode_sum(self, x: Floats, rng: RandomSource, residual: Floats, *, out: Bytes | None = None) -> Payload:
        """One step of error feedback: residual += x, then encode(residual, rng, error=residual, out=out).

        The same values in one sweep over memory where the codec can. `residual`: float32, the shape of x, apart from it.
        """
        source = in_c_order(x, "x")
        check_error(residual, x.shape)
        if not residual.flags.c_contiguous or np.may_share_memory(residual, source):
            np.add(residual, source, out=residual)
            return self.encode(residual, rng, error=residual, out=out)
        return self._payload(x.shape, rng, out, lambda key, body: self._encode_sum(readonly(source), key, body, residual))

    def encode_parts(self, parts: Parts, rng: RandomSource, residual: Floats, *, out: Bytes | None = None) -> Payload:
        """`encode_sum` of an array that lies in `parts`, flat float32 in ascending order; where none lies it is zero.

        `residual`: contiguous, apart from all of them. Raises NonFiniteGradientError like encode. If the codec `adds_finite`,
        nobody needs to check the parts before: NonFinitePartError leaves `residual` as it was, but for rounding.
        """
        check_error(residual, residual.shape)
        check_contiguous(residual, "residual")
        check_parts(parts, residual.size)
        return self._payload(residual.shape, rng, out, lambda key, body: self._encode_parts(parts, key, body, residual))

    def encode_change(
        self, x: Floats, y: Floats, rng: RandomSource, *, out: Bytes | None = None, scratch: Floats | None = None
    ) -> Payload:
        """Code x - y and move y by what is decoded: y += decode(payload). Both float32, contiguous and of one shape.

        `scratch` (float32, flat, as long as x or longer) saves codecs that need the difference as a whole an allocation.
        """
        source = in_c_order(x, "x")
        check_error(y, x.shape)
        check_contiguous(y, "y")
        room = np.empty(x.shape, np.float32) if scratch is None else scratch[: x.size].reshape(x.shape)
        return self._payload(x.shape, rng, out, lambda key, body: self._encode_change(readonly(source), y, key, body, room))

    def decode(self, payload: Payload, out: Floats | None = None) -> Floats:
        """The decoded array, float32 of payload.shape: a new one, or `out` (that shape or flat, contiguous) overwritten.

        Any instance of the class decodes what another one encoded. Raises PayloadError.
        """
        body = self._body(payload)
        if out is None:
            out = np.empty(payload.shape, np.float32)
        target = checked_target(out, payload.shape)
        if target.size:
            self._decode(body, target)
        return out

    def decode_add(self, payload: Payload, out: Floats, weight: float = 1.0) -> None:
        """out += weight * decode(payload), both operations rounded to float32.

        `out`: float32, contiguous, payload.shape or flat. Raises PayloadError and has then not touched `out`.
        """
        body = self._body(payload)
        target = checked_target(out, payload.shape)
        if target.size:
            self._decode_add(body, target, np.float32(weight))

    def measure(self, payload: Payload, room: Floats | None = None) -> Measured:
        """Check all of a payload and find its norm, before anything of it is added. Raises PayloadError.

        `room` (float32, flat, as long as the array or longer) saves an allocation where that takes decoding. It is in use until
        the last `add`, and so is the payload's memory.
        """
        body, shape = self._body(payload), payload.shape
        if not payload.size:
            return Measured(0.0, lambda out, weight: None)
        found = self._measure(body, shape, room)
        return Measured(found.norm, lambda out, weight: found.add(checked_target(out, shape), weight))

    def support(self, payload: Payload) -> Indices:
        """The flat indices that the payload carries, ascending: all of them unless the codec is sparse."""
        body = self._body(payload)
        return self._support(body, payload.shape) if payload.size else np.empty(0, np.int64)

    def contractive(self) -> Codec:
        """The form to use inside a feedback loop: E||x - decode|| shrinks x whatever the codec's variance."""
        if self.lossless or not self.unbiased:
            return self
        from psnode.codecs.contractive import Contractive

        return Contractive(self)

    def fit(self, x: Floats, rng: RandomSource) -> Self:
        """This codec with a codebook or prior fitted to `x`; itself if it has none."""
        return self

    def merge(self, payloads: Sequence[Payload]) -> Payload:
        """The payload of the sum of the arrays in `payloads`, all encoded under one key; linear codecs only. PayloadError."""
        raise CodecError(f"{self!r} is not linear: its payloads cannot be merged, decode and add them")

    def merges_with_own(self, payload: Payload, rng: RandomSource) -> bool:
        """Whether a sound `payload` can be merged with those that this codec makes of arrays of its shape, drawing from `rng`."""
        return self.linear

    def max_nbytes(self, shape: Shape) -> int:
        """The most bytes a payload of an array of `shape` has, header included."""
        body = self._max_body(tuple(shape)) if math.prod(shape) else 0
        return header_nbytes(len(shape)) + body

    # What a subclass writes. x: its own shape, read-only. body: writable in _encode, read-only elsewhere; it starts
    # at a multiple of 4 bytes. key: two words. The body holds all that decoding needs beside the shape.

    @abstractmethod
    def _max_body(self, shape: Shape) -> int:
        """The most bytes that _encode writes for an array of `shape`, which is not empty."""

    @abstractmethod
    def _encode(self, x: Floats, key: Words, body: Bytes) -> int:
        """Write the body, return its length. Raises NonFiniteGradientError."""

    @abstractmethod
    def _decode(self, body: Bytes, out: Floats) -> None:
        """Overwrite `out`, whose shape is the array's. Raises PayloadError unless every byte of `body` is as it should be."""

    def _decode_add(self, body: Bytes, out: Floats, weight: np.float32) -> None:
        """Add weight * decoded to `out`; must raise PayloadError before the first write."""
        from psnode.codecs.kernels.finite import add_scaled

        decoded = np.empty_like(out)
        self._decode(body, decoded)
        add_scaled(decoded.reshape(-1), out.reshape(-1), weight)

    def _measure(self, body: Bytes, shape: Shape, room: Floats | None) -> Measured:
        """The norm of what `body` decodes to, and how to add that; must raise PayloadError for all that _decode refuses."""
        from psnode.codecs.kernels.finite import add_scaled
        from psnode.codecs.norm import norm_of

        size = math.prod(shape)
        decoded = np.empty(size, np.float32) if room is None else room[:size]
        self._decode(body, decoded.reshape(shape))
        return Measured(norm_of(decoded, self.id), lambda out, weight: add_scaled(decoded, out.reshape(-1), weight))

    def _encode_error(self, x: Floats, key: Words, body: Bytes, error: Floats) -> int:
        """_encode, and error = x - decoded. `error` is contiguous and is either the memory of x or apart from it."""
        used = self._encode(x, key, body)
        if self.lossless:
            error.fill(0)
            return used
        if error.ctypes.data != x.ctypes.data:
            np.copyto(error, x)
        self._decode_add(readonly(body[:used]), error, np.float32(-1))
        return used

    def _encode_sum(self, x: Floats, key: Words, body: Bytes, residual: Floats) -> int:
        """residual += x, and _encode_error of it in place. `residual` is contiguous and apart from x."""
        return self._encode_parts([(0, x.reshape(-1))], key, body, residual)

    def _encode_parts(self, parts: Parts, key: Words, body: Bytes, residual: Floats) -> int:
        """residual += the array in `parts`, and _encode_error of it in place. `residual` is contiguous."""
        flat = residual.reshape(-1)
        for place, part in parts:
            there = flat[place : place + part.size]
            np.add(there, part, out=there)
        return self._encode_error(readonly(residual), key, body, residual)

    def _encode_change(self, x: Floats, y: Floats, key: Words, body: Bytes, room: Floats) -> int:
        """_encode of x - y, for which there is `room`, and y += decoded. All contiguous."""
        used = self._encode(readonly(np.subtract(x, y, out=room)), key, body)
        self._decode_add(readonly(body[:used]), y, np.float32(1))
        return used

    def _encode_dots(self, x: Floats, key: Words, body: Bytes) -> tuple[int, float, float]:
        """_encode, and the inner products <x, y> and <y, y> with the decoded y, in float64 and in a fixed order."""
        from psnode.codecs.kernels.dots import inner_products

        used = self._encode(x, key, body)
        decoded = np.empty_like(x)
        self._decode(readonly(body[:used]), decoded)
        return used, *inner_products(x, decoded)

    def _encode_sum_dots(self, x: Floats, key: Words, body: Bytes, residual: Floats) -> tuple[int, float, float]:
        """residual += x, and _encode_dots of it. `residual` is contiguous and apart from x."""
        np.add(residual, x, out=residual)
        return self._encode_dots(readonly(residual), key, body)

    def _support(self, body: Bytes, shape: Shape) -> Indices:
        """The flat indices sent, ascending."""
        return np.arange(math.prod(shape), dtype=np.int64)

    def _payload(self, shape: Shape, rng: RandomSource, out: Bytes | None, write: Callable[[Words, Bytes], int]) -> Payload:
        """Header and the body that `write` fills from a key, in `out` or in a buffer of its own."""
        check_shape(shape)
        key = np.asarray(rng.integers(2**64, size=2, dtype=np.uint64))
        limit = self.max_nbytes(shape)
        buffer = np.empty(limit, np.uint8) if out is None else checked_buffer(out, limit)
        used = write_header(buffer, self.stages, shape)
        if math.prod(shape):
            used += write(key, buffer[used:limit])
        if out is None and used < 0.75 * limit:
            buffer = buffer[:used].copy()
        return Payload(buffer[:used])

    def _with_error(self, source: Floats, key: Words, body: Bytes, error: Floats) -> int:
        if error.flags.c_contiguous:
            if error.ctypes.data != source.ctypes.data and np.may_share_memory(error, source):
                source = source.copy()
            return self._encode_error(readonly(source), key, body, error)
        target = np.empty_like(source)
        used = self._encode_error(readonly(source), key, body, target)
        np.copyto(error, target)
        return used

    def _body(self, payload: Payload) -> Bytes:
        """The body of a payload that this codec can decode."""
        if not isinstance(payload, Payload):
            raise CodecTypeError(f"decode takes a Payload, not {type(payload).__name__}: use Payload.from_bytes")
        if payload.stages != self.stages:
            raise PayloadError(f"a payload of {'+'.join(payload.stages)} was handed to {'+'.join(self.stages)}")
        body = payload.body
        if not payload.size and body.size:
            raise PayloadError(f"a payload of an empty array has {body.size} bytes after its header")
        return body


def readonly(array: Array) -> Array:
    """A view of `array` that cannot be written through: kernels are compiled for such inputs alone."""
    view = array.view()
    view.flags.writeable = False
    return view
