"""Codec: a pure pair encode / decode over one float32 array, and the parts that all codecs share.

A codec is a frozen dataclass whose fields are its configuration; it has no other state. Its subclass writes
the hooks at the end of the class: they see C-contiguous arrays that were checked, and never an empty one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import numpy as np

from psnode.codecs import table
from psnode.codecs.abilities import Defaults
from psnode.codecs.arrays import (
    Bytes,
    Codes,
    Floats,
    Indices,
    Parts,
    Shape,
    Words,
    check_error,
    checked_target,
    in_c_order,
    readonly,
)
from psnode.codecs.payload import Payload, RandomSource, assemble, body_of, header_nbytes
from psnode.codecs.sinks import NOTHING, InnerProducts, Moved, Sink, Subtracted
from psnode.codecs.sources import Accumulated, Copied, Source, Values
from psnode.codecs.spec import Spec, Stage
from psnode.codecs.traits import Traits
from psnode.errors import CodecTypeError, CodecValueError

__all__ = [
    "NOTHING",
    "Bytes",
    "Codec",
    "Codes",
    "Floats",
    "Indices",
    "Measured",
    "Parts",
    "Payload",
    "RandomSource",
    "Shape",
    "Sink",
    "Source",
    "Words",
    "readonly",
]


class Measured(NamedTuple):
    """A payload that was checked completely. `add(out, weight)` is decode_add without another check; `out` may be flat.

    `norm`: the L2 norm of its decoded values; where the payload has scales, the largest that they permit; of a linear sketch the
    norm of its cells. No decoded value is larger.
    """

    norm: float
    add: Callable[[Floats, np.float32], None]


class Codec(Defaults, ABC):
    """encode(x) -> Payload; decode(payload) -> x or an approximation of it.

    Bytes, decoded values and errors are functions of x, the configuration and the two words drawn from rng,
    equal on every machine (svd: encode only per machine and library version).
    """

    id: ClassVar[str]

    @property
    def traits(self) -> Traits:
        """Traits as the codec declares them. Callers ask the five properties below by their own names: `codec.unbiased`."""
        return Traits()

    @property
    def unbiased(self) -> bool:
        """As `Traits.unbiased`."""
        return self.traits.unbiased

    @property
    def lossless(self) -> bool:
        """As `Traits.lossless`."""
        return self.traits.lossless

    @property
    def linear(self) -> bool:
        """As `Traits.linear`."""
        return self.traits.linear

    @property
    def shaped(self) -> bool:
        """As `Traits.shaped`."""
        return self.traits.shaped

    @property
    def sparse(self) -> bool:
        """As `Traits.sparse`."""
        return self.traits.sparse

    @property
    def stages(self) -> tuple[str, ...]:
        """The ids that this codec's payloads carry."""
        return (self.id,)

    @property
    def spec(self) -> Spec:
        """The spec with every parameter, of which get_codec makes an equal codec."""
        return Spec(False, (Stage.of(self.id, self),))

    def __repr__(self) -> str:
        """`spec` as text."""
        return str(self.spec)

    def encode(
        self,
        x: Floats | Source,
        rng: RandomSource,
        *,
        sink: Sink = NOTHING,
        error: Floats | None = None,
        out: Bytes | None = None,
    ) -> Payload:
        """Code `x` (float32, any shape of at most 8 dimensions and 2**28 values, or a source), drawing two words from `rng`.

        `sink` takes the decoded values. `error` (float32, the shape of x; may be x itself) receives
        x - decode(payload), in the place of a source and a sink. `out` (uint8, starting at a multiple of 4 bytes,
        max_nbytes(x.shape) long or longer) is where the payload is written; it is then a view.
        Raises NonFiniteGradientError (the targets of source and sink are undefined then, but see Accumulated),
        CodecTypeError, CodecValueError.
        """
        if error is not None:
            if isinstance(x, Source) or sink is not NOTHING:
                raise CodecTypeError("error goes with an array alone: give the sink Subtracted(target) instead")
            return self._encode_error(in_c_order(x, "x"), rng, error, out)
        source = x if isinstance(x, Source) else Values(x)
        if isinstance(sink, Moved) and sink.target.shape != source.shape:
            raise CodecValueError(f"the sink has shape {sink.target.shape}, the source has {source.shape}: they must be equal")
        return assemble(self, source.shape, rng, lambda key, body: self._coded(source, key, body, sink), out)

    def decode(self, payload: Payload, out: Floats | None = None) -> Floats:
        """The decoded array, float32 of payload.shape: a new one, or `out` (that shape or flat, contiguous) overwritten.

        Any instance of the class decodes payloads of another one. Raises PayloadError.
        """
        body = body_of(self, payload)
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
        body = body_of(self, payload)
        target = checked_target(out, payload.shape)
        if target.size:
            self._decode_add(body, target, np.float32(weight))

    def measure(self, payload: Payload, room: Floats | None = None) -> Measured:
        """Check all of a payload and find its norm, before anything of it is added. Raises PayloadError.

        `room` (float32, flat, as long as the array or longer) saves an allocation where that takes decoding. It is in use until
        the last `add`, and so is the payload's memory.
        """
        body, shape = body_of(self, payload), payload.shape
        if not payload.size:
            return Measured(0.0, lambda out, weight: None)
        found = self._measure(body, shape, room)
        return Measured(found.norm, lambda out, weight: found.add(checked_target(out, shape), weight))

    def contractive(self) -> Codec:
        """The form to use inside a feedback loop: E||x - decode|| shrinks x whatever the codec's variance."""
        if self.lossless or not self.unbiased:
            return self
        form: Codec = table.load("contractive")(self)  # found by its id, as every codec is: it derives from this class
        return form

    def max_nbytes(self, shape: Shape) -> int:
        """The most bytes a payload of an array of `shape` has, header included."""
        body = self._max_body(tuple(shape)) if math.prod(shape) else 0
        return header_nbytes(len(shape)) + body

    # Hooks of a subclass. body: writable in _encode, read-only elsewhere; it starts at a multiple of 4 bytes.
    # key: two words. The body holds all that decoding needs beside the shape.

    @abstractmethod
    def _max_body(self, shape: Shape) -> int:
        """The most bytes that _encode writes for an array of `shape`, which is not empty."""

    @abstractmethod
    def _encode(self, source: Source, key: Words, body: Bytes, sink: Sink) -> int:
        """Write the body for the values of `source` and serve `sink`; the body's length. Raises NonFiniteGradientError.

        `sink` is NOTHING but where `_fuses` says otherwise: a codec without sweeps of its own codes source.array().
        """

    def _fuses(self, source: Source, sink: Sink) -> bool:
        """True if _encode takes this pair as it is. If not, it is tried with the source made, and then without the sink."""
        return sink is NOTHING

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
        """The norm of the decoded `body`, and how to add it; must raise PayloadError for all that _decode refuses."""
        from psnode.codecs.kernels.finite import add_scaled
        from psnode.codecs.kernels.norms import norm_of

        if (sent := self._entries(body, shape)) is not None:
            from psnode.codecs.kernels.entries import add_at

            indices, values = sent
            return Measured(norm_of(values, self.id), lambda out, weight: add_at(out.reshape(-1), indices, values, weight))
        size = math.prod(shape)
        decoded = np.empty(size, np.float32) if room is None else room[:size]
        self._decode(body, decoded.reshape(shape))
        return Measured(norm_of(decoded, self.id), lambda out, weight: add_scaled(decoded, out.reshape(-1), weight))

    def _coded(self, source: Source, key: Words, body: Bytes, sink: Sink) -> int:
        """Call _encode. If the codec does not fuse the pair, make the source first and serve the sink afterwards, by decoding."""
        if self._fuses(source, sink):
            return self._encode(source, key, body, sink)
        source = source.made()
        if self._fuses(source, sink):
            return self._encode(source, key, body, sink)
        used = self._encode(source, key, body, NOTHING)
        self._apply(sink, source, readonly(body[:used]))
        return used

    def _apply(self, sink: Sink, source: Source, body: Bytes) -> None:
        """Serve `sink` with the decoded values of `body`, made of `source`."""
        if isinstance(sink, Moved):
            self._decode_add(body, sink.target, np.float32(sink.weight))
        elif isinstance(sink, InnerProducts):
            from psnode.codecs.kernels.dots import tree_products

            decoded = np.empty(source.shape, np.float32)
            self._decode(body, decoded)
            sink.record(*tree_products(source.array(), decoded))

    def _encode_error(self, x: Floats, rng: RandomSource, error: Floats, out: Bytes | None) -> Payload:
        """encode(x, error=error): a copy of x is coded where it lies."""
        check_error(error, x.shape)
        target = error if error.flags.c_contiguous else np.empty_like(x)
        source: Source = Accumulated((), target)
        if target.ctypes.data != x.ctypes.data:
            source = Copied(x.copy() if np.may_share_memory(target, x) else x, target)
        payload = self.encode(source, rng, sink=Subtracted(target), out=out)
        if target is not error:
            np.copyto(error, target)
        return payload
