"""Methods that some codecs have beside encode and decode: Sparse, Fitted and Linear are mixins, to be named before Codec.

A codec without the mixin answers by Defaults, so that callers need not ask first.
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
    """Answers of a codec that is dense, has nothing to fit, and whose payloads cannot be added undecoded."""

    def support(self, payload: Payload) -> Indices:
        """The flat indices that the payload carries, ascending: all of them unless the codec is sparse."""
        body = body_of(self, payload)
        return self._support(body, payload.shape) if payload.size else np.empty(0, np.int64)

    def entries(self, payload: Payload) -> Entries | None:
        """Ascending indices (uint32) and values of a sparse payload: all others decode to 0. None if the codec is not sparse,
        and for an empty array. Raises PayloadError.
        """
        body = body_of(self, payload)
        return self._entries(body, payload.shape) if payload.size else None

    def fit(self, x: Floats, rng: RandomSource) -> Self:
        """This codec with a codebook or prior fitted to `x`; itself if it has none."""
        return self

    def merge(self, payloads: Sequence[Payload]) -> Payload:
        """The payload of the sum of the arrays in `payloads`, all encoded under one key; linear codecs only. PayloadError."""
        raise CodecError(f"{self!r} is not linear: its payloads cannot be merged, decode and add them")

    def merges_with_own(self, payload: Payload, rng: RandomSource) -> bool:
        """True if a sound `payload` can be merged with those that this codec makes of arrays of its shape, drawing from `rng`."""
        return self.linear

    @property
    @abstractmethod
    def linear(self) -> bool:
        """True if payloads that were encoded under one key can be merged."""

    @property
    @abstractmethod
    def stages(self) -> tuple[str, ...]:
        """The ids that this codec's payloads carry."""

    @abstractmethod
    def max_nbytes(self, shape: Shape) -> int:
        """The most bytes a payload of an array of `shape` has, header included."""

    def _support(self, body: Bytes, shape: Shape) -> Indices:
        """The flat indices sent, ascending."""
        return np.arange(math.prod(shape), dtype=np.int64)

    def _entries(self, body: Bytes, shape: Shape) -> Entries | None:
        """`entries` of a body. Raises PayloadError for all that _decode refuses."""
        return None


class Sparse(Defaults):
    """A codec whose payloads carry some coordinates as indices and values; all others decode to 0."""

    @abstractmethod
    def _entries(self, body: Bytes, shape: Shape) -> Entries:
        """`entries` of a body. Raises PayloadError for all that _decode refuses."""

    def _support(self, body: Bytes, shape: Shape) -> Indices:
        return self._entries(body, shape).indices.astype(np.int64)


class Fitted(Defaults):
    """A codec with a codebook, which serves `Traits.refit` steps of training."""

    @abstractmethod
    def fit(self, x: Floats, rng: RandomSource) -> Self:
        """This codec with a codebook fitted to `x`. Raises NonFiniteGradientError."""


class Linear(Defaults):
    """A codec whose payloads can be added undecoded if they were encoded under one key."""

    @abstractmethod
    def merge(self, payloads: Sequence[Payload]) -> Payload:
        """The payload of the sum of the arrays in `payloads`, all encoded under one key. PayloadError."""
