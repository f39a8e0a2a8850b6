"""Optional methods of codecs: the mixins Sparse, Fitted and Linear, which a subclass lists before Codec in its bases.

A codec without a mixin inherits the methods of Defaults, so that a caller can use them without checking for the mixin.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

import numpy as np

from psnode.codecs.arrays import Bytes, Floats, Indices, Shape
from psnode.codecs.payload import Payload, RandomSource, body_of
from psnode.errors import CodecError

if TYPE_CHECKING:
    from psnode.codecs.selection.largest import Entries


class Defaults(ABC):
    """Default methods of a codec: it is dense, has no codebook, and its payloads cannot be added before they are decoded."""

    def support(self, payload: Payload) -> Indices:
        """Return the flat indices of the coordinates that the payload carries, int64, ascending.

        If the codec is dense, these are all indices of the array.
        """
        body = body_of(self, payload)
        return self._support(body, payload.shape) if payload.size else np.empty(0, np.int64)

    def entries(self, payload: Payload) -> Entries | None:
        """Return the ascending indices (uint32) and the values of a sparse payload; all other coordinates decode to 0.

        Returns None if the array is empty or the codec is not sparse. Raises PayloadError.
        """
        body = body_of(self, payload)
        return self._entries(body, payload.shape) if payload.size else None

    def fit(self, x: Floats, rng: RandomSource) -> Self:
        """Return this codec with its codebook fitted to `x`, or the codec itself if it has no codebook."""
        return self

    def merge(self, payloads: Sequence[Payload]) -> Payload:
        """Return the payload of the sum of the arrays that `payloads` encode. All must be encoded under one key.

        Raises CodecError if not linear.
        """
        raise CodecError(f"{self!r} is not linear: its payloads cannot be merged, decode and add them")

    def merges_with_own(self, payload: Payload, rng: RandomSource) -> bool:
        """Return True if `payload`, which must be valid, can be merged with this codec's payloads of arrays of the same shape.

        The codec's payloads are those that `encode` makes with this `rng`.
        """
        return self.linear

    @property
    @abstractmethod
    def linear(self) -> bool:
        """True if payloads encoded under one key can be merged."""

    @property
    @abstractmethod
    def stages(self) -> tuple[str, ...]:
        """The ids of the stages, as the header of this codec's payloads lists them."""

    @abstractmethod
    def max_nbytes(self, shape: Shape) -> int:
        """Return the largest possible length in bytes of a payload of an array of `shape`, header included."""

    def _support(self, body: Bytes, shape: Shape) -> Indices:
        """Return the result of `support` for a payload with this body and shape."""
        return np.arange(math.prod(shape), dtype=np.int64)

    def _entries(self, body: Bytes, shape: Shape) -> Entries | None:
        """Return the result of `entries` for a payload with this body and shape. Raises PayloadError wherever _decode does."""
        return None


class Sparse(Defaults):
    """Mixin of a codec whose payloads carry indices and values of some coordinates; all others decode to 0."""

    @abstractmethod
    def _entries(self, body: Bytes, shape: Shape) -> Entries:
        """Return the result of `entries` for a payload with this body and shape. Raises PayloadError wherever _decode does."""

    def _support(self, body: Bytes, shape: Shape) -> Indices:
        return self._entries(body, shape).indices.astype(np.int64)


class Fitted(Defaults):
    """Mixin of a codec with a codebook, which is refitted every `Traits.refit` steps of training."""

    @abstractmethod
    def fit(self, x: Floats, rng: RandomSource) -> Self:
        """Return this codec with a codebook fitted to `x`. Raises NonFiniteGradientError."""


class Linear(Defaults):
    """Mixin of a codec whose payloads can be added without decoding them, provided that they were encoded under one key."""

    @abstractmethod
    def merge(self, payloads: Sequence[Payload]) -> Payload:
        """Return the payload of the sum of the arrays that `payloads` encode.

        Raises PayloadError unless all are under one key.
        """
