"""Codec: the base class of all codecs, with the pure functions encode and decode of one float32 array.

A codec is a frozen dataclass whose fields are its configuration; it has no other state. A subclass implements the hooks at the
end of the class. A hook receives only arrays that Codec has checked: they are C-contiguous and not empty.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

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
    as_floats,
    check_error,
    checked_target,
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
    """Norm of a payload that passed all checks, and the function `add`, which adds its values.

    `add(out, weight)` has the effect of decode_add(payload, out, weight); `out` may be flat.

    `norm` is the L2 norm of the decoded values, with two exceptions. If the payload has scales, `norm` may be the largest L2
    norm that these scales permit. For a linear sketch, `norm` is the norm of the cells. No decoded magnitude exceeds `norm`.
    """

    norm: float
    add: Callable[[Floats, np.float32], None]


class Codec(Defaults, ABC):
    """Base class of codecs: encode(x) -> Payload; decode(payload) -> x or an approximation of x.

    Bytes, decoded values and errors depend only on x, the configuration and the two words drawn from rng, and are equal on every
    machine. There are two exceptions: encode of svd also depends on the machine and library version, and the bytes of blosc and
    zstd depend on the version of their libraries.
    """

    id: ClassVar[str]

    @property
    def traits(self) -> Traits:
        """The codec's traits. Five of them are also properties of the codec itself, for example `codec.unbiased`."""
        return Traits()

    @property
    def unbiased(self) -> bool:
        """The trait `unbiased`: E decode(encode(x)) = x for every x."""
        return self.traits.unbiased

    @property
    def lossless(self) -> bool:
        """The trait `lossless`: decode(encode(x)) = x, bit for bit."""
        return self.traits.lossless

    @property
    def linear(self) -> bool:
        """The trait `linear`: `merge` adds payloads without decoding them."""
        return self.traits.linear

    @property
    def shaped(self) -> bool:
        """The trait `shaped`: the code depends on the shape of x as well as on its values."""
        return self.traits.shaped

    @property
    def sparse(self) -> bool:
        """The trait `sparse`: decode_add changes only the coordinates in `support`."""
        return self.traits.sparse

    @property
    def stages(self) -> tuple[str, ...]:
        """The ids of the stages, as the header of this codec's payloads lists them."""
        return (self.id,)

    @property
    def spec(self) -> Spec:
        """The codec's spec with its parameters. get_codec builds an equal codec from the text of this spec."""
        return Spec(False, (Stage.of(self.id, self),))

    def __repr__(self) -> str:
        """Return `spec` as a string."""
        return str(self.spec)

    def encode(
        self,
        x: npt.ArrayLike | Source,
        rng: RandomSource | None = None,
        *,
        sink: Sink = NOTHING,
        error: Floats | None = None,
        out: Bytes | None = None,
    ) -> Payload:
        """Encode `x` (at most 8 dimensions and 2**28 values) or a source, drawing two words from `rng`.

        A float32 numpy array in C order is read without a copy. Other arrays of floats, torch tensors on the CPU, and lists are
        converted. Without `rng` the words come from the operating system, as in np.random.default_rng(), so that payloads of a
        randomized codec differ from call to call. A deterministic codec needs no `rng`.

        `sink` receives the decoded values. `error` (float32, the shape of x; may be x itself) receives x - decode(payload). It
        can be given only if x is an array and no sink is given. If `out` is given (uint8, at least max_nbytes(x.shape) bytes,
        aligned to 4 bytes), the payload is written to `out` and the returned Payload is a view of it.

        Raises NonFiniteGradientError, CodecTypeError, CodecValueError. After NonFiniteGradientError the contents of the targets
        of source and sink are undefined, except in the case that Accumulated describes.
        """
        if error is not None:
            if isinstance(x, Source) or sink is not NOTHING:
                raise CodecTypeError("error goes with an array alone: give the sink Subtracted(target) instead")
            return self._encode_error(as_floats(x, "x"), rng, error, out)
        source = x if isinstance(x, Source) else Values(x)
        if isinstance(sink, Moved) and sink.target.shape != source.shape:
            raise CodecValueError(f"the sink has shape {sink.target.shape}, the source has {source.shape}: they must be equal")
        return assemble(self, source.shape, rng, lambda key, body: self._coded(source, key, body, sink), out)

    def decode(self, payload: Payload, out: Floats | None = None) -> Floats:
        """Return the decoded array, float32: a new array of payload.shape, or `out` (contiguous, of that shape or flat).

        The payload may come from another instance of the same class, with any parameters. Raises PayloadError.
        """
        body = body_of(self, payload)
        if out is None:
            out = np.empty(payload.shape, np.float32)
        target = checked_target(out, payload.shape)
        if target.size:
            self._decode(body, target)
        return out

    def decode_add(self, payload: Payload, out: Floats, weight: float = 1.0) -> None:
        """Add weight * decode(payload) to `out`, rounding the product and the sum to float32.

        `out`: float32, contiguous, payload.shape or flat. Raises PayloadError before `out` is changed.
        """
        body = body_of(self, payload)
        target = checked_target(out, payload.shape)
        if target.size:
            self._decode_add(body, target, np.float32(weight))

    def measure(self, payload: Payload, room: Floats | None = None) -> Measured:
        """Check the whole payload and compute its norm without adding its values to anything. Raises PayloadError.

        `room` (float32, flat, at least as long as the array) saves an allocation if the payload must be decoded to find the
        norm. Neither `room` nor the payload's memory may be changed before the last call of `add`.
        """
        body, shape = body_of(self, payload), payload.shape
        if not payload.size:
            return Measured(0.0, lambda out, weight: None)
        found = self._measure(body, shape, room)
        return Measured(found.norm, lambda out, weight: found.add(checked_target(out, shape), weight))

    def contractive(self) -> Codec:
        """Return the codec's form for feedback loops.

        For psnode's codecs it satisfies E||x - decode|| <= ||x||, however large this codec's variance is.
        """
        if self.lossless or not self.unbiased:
            return self
        form: Codec = table.load("contractive")(self)  # loaded by id, because Contractive derives from this class
        return form

    def kernel_parts(self) -> Sequence[Callable[[], None]]:
        """Return functions that run one part of the codec's kernels each, so that the parts can be compiled in parallel."""
        return ()

    def max_nbytes(self, shape: Shape) -> int:
        """Return the largest possible length in bytes of a payload of an array of `shape`, header included."""
        body = self._max_body(tuple(shape)) if math.prod(shape) else 0
        return header_nbytes(len(shape)) + body

    # Hooks of a subclass. `body` is writable in _encode and read-only elsewhere; it starts at a multiple of 4 bytes.
    # `key` consists of two words. Decoding needs only the body and the shape.

    @abstractmethod
    def _max_body(self, shape: Shape) -> int:
        """Return the largest number of bytes that _encode writes for a non-empty array of `shape`."""

    @abstractmethod
    def _encode(self, source: Source, key: Words, body: Bytes, sink: Sink) -> int:
        """Write the body for the values of `source`, serve `sink`, and return the body's length. Raises NonFiniteGradientError.

        `sink` is NOTHING unless `_fuses` accepted another sink. A codec whose `_fuses` accepts only NOTHING encodes
        source.array().
        """

    def _fuses(self, source: Source, sink: Sink) -> bool:
        """Return True if _encode accepts this source together with this sink.

        If the result is False, `_coded` calls this method again with `source.made()`. If the result is False again, `_coded`
        calls _encode without the sink.
        """
        return sink is NOTHING

    @abstractmethod
    def _decode(self, body: Bytes, out: Floats) -> None:
        """Overwrite `out`, which has the array's shape. Raises PayloadError unless every byte of `body` is valid."""

    def _decode_add(self, body: Bytes, out: Floats, weight: np.float32) -> None:
        """Add weight * decoded to `out`. A PayloadError must be raised before the first write to `out`."""
        from psnode.codecs.kernels.finite import add_scaled

        decoded = np.empty_like(out)
        self._decode(body, decoded)
        add_scaled(decoded.reshape(-1), out.reshape(-1), weight)

    def _measure(self, body: Bytes, shape: Shape, room: Floats | None) -> Measured:
        """Return the norm of the decoded `body` and a function that adds its values.

        Raises PayloadError wherever _decode does.
        """
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
        """Write the body for `source`, serve `sink`, and return the body's length.

        If _encode does not accept this source with this sink, the source is computed first. If _encode does not accept the
        computed source with this sink either, the sink is served by decoding the body.
        """
        if self._fuses(source, sink):
            return self._encode(source, key, body, sink)
        source = source.made()
        if self._fuses(source, sink):
            return self._encode(source, key, body, sink)
        used = self._encode(source, key, body, NOTHING)
        self._apply(sink, source, readonly(body[:used]))
        return used

    def _apply(self, sink: Sink, source: Source, body: Bytes) -> None:
        """Decode `body`, which encodes `source`, and serve `sink` with the decoded values."""
        if isinstance(sink, Moved):
            self._decode_add(body, sink.target, np.float32(sink.weight))
        elif isinstance(sink, InnerProducts):
            from psnode.codecs.kernels.dots import tree_products

            decoded = np.empty(source.shape, np.float32)
            self._decode(body, decoded)
            sink.record(*tree_products(source.array(), decoded))

    def _encode_error(self, x: Floats, rng: RandomSource | None, error: Floats, out: Bytes | None) -> Payload:
        """Encode `x` and write x - decode to `error`.

        A codec whose _encode accepts the sink Subtracted does both in one sweep.
        """
        check_error(error, x.shape)
        target = error if error.flags.c_contiguous else np.empty_like(x)
        source: Source = Accumulated((), target)
        if target.ctypes.data != x.ctypes.data:
            source = Copied(x.copy() if np.may_share_memory(target, x) else x, target)
        payload = self.encode(source, rng, sink=Subtracted(target), out=out)
        if target is not error:
            np.copyto(error, target)
        return payload
