"""Identity: the float32 values unchanged, 32 bits per coordinate. The codec is lossless and linear."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from psnode.codecs.abilities import Linear
from psnode.codecs.base import Bytes, Codec, Floats, Measured, Shape, Sink, Source, Words
from psnode.codecs.kernels.finite import add_scaled, all_finite, copy_finite, raise_nonfinite
from psnode.codecs.kernels.norms import norm_of
from psnode.codecs.payload import Payload, header_nbytes, write_header
from psnode.codecs.traits import Traits
from psnode.errors import CodecValueError, PayloadError


@dataclass(frozen=True, repr=False)
class Identity(Linear, Codec):
    """identity: no parameters; decode(encode(x)) = x, bit for bit.

    >>> from psnode.codecs import get_codec
    >>> codec, x = get_codec("identity"), np.array([1, -4, 2, 0.5], np.float32)
    >>> codec.decode(codec.encode(x, np.random.default_rng(1))).tolist()
    [1.0, -4.0, 2.0, 0.5]
    """

    id = "identity"
    traits = Traits(unbiased=True, lossless=True, linear=True, decodes_linearly=True)

    def merge(self, payloads: Sequence[Payload]) -> Payload:
        """Return the payload of the sum of `payloads`, added in their order in float32.

        Raises CodecValueError if `payloads` is empty.
        """
        if not payloads:
            raise CodecValueError("merge needs at least one payload")
        shape = payloads[0].shape
        buffer = np.empty(self.max_nbytes(shape), np.uint8)
        write_header(buffer, self.stages, shape)
        total = buffer[header_nbytes(len(shape)) :].view(np.float32)
        self.decode(payloads[0], total)
        for payload in payloads[1:]:
            self.decode_add(payload, total)
        return Payload(buffer)

    def _max_body(self, shape: Shape) -> int:
        return 4 * math.prod(shape)

    def _encode(self, source: Source, key: Words, body: Bytes, sink: Sink) -> int:
        x = source.array()
        if not copy_finite(x.reshape(-1), body[: 4 * x.size].view(np.float32)):
            raise_nonfinite(x)
        return 4 * x.size

    def _decode(self, body: Bytes, out: Floats) -> None:
        out[...] = self._values(body, out.shape)

    def _decode_add(self, body: Bytes, out: Floats, weight: np.float32) -> None:
        add_scaled(self._values(body, out.shape).reshape(-1), out.reshape(-1), weight)

    def _measure(self, body: Bytes, shape: Shape, room: Floats | None) -> Measured:
        """Return the norm, computed in the pass over the values that checks that all of them are finite."""
        values = self._raw(body, shape)
        return Measured(norm_of(values, self.id), lambda out, weight: add_scaled(values, out.reshape(-1), weight))

    def _values(self, body: Bytes, shape: Shape) -> Floats:
        values = self._raw(body, shape)
        if not all_finite(values):
            raise PayloadError("identity: a value is not finite")
        return values.reshape(shape)

    def _raw(self, body: Bytes, shape: Shape) -> Floats:
        """Return the values of a body, flat, without checking that they are finite.

        Raises PayloadError if its length is wrong.
        """
        if body.size != 4 * math.prod(shape):
            raise PayloadError(f"identity: a body of {body.size} bytes cannot hold float32 values of shape {shape}")
        return body.view(np.float32)
