"""Interfaces of codecs on a device."""

from __future__ import annotations

from typing import Protocol

import torch

from psnode.codecs import Codec, Payload
from psnode.codecs.arrays import Bytes, Shape, Words


class DeviceEncoder(Protocol):
    """Encoder of arrays of one size on a device. `padded` is the length of an array with its padding of zeros."""

    padded: int

    def encode(self, x: torch.Tensor, key: Words, error: torch.Tensor | None = None) -> None:
        """Code `x` (flat) on the current stream, and write x - decoded to `error`, which may be `x`.

        The error is complete after `take`.
        """

    @property
    def is_finite(self) -> bool:
        """True unless the last array had a value that is not finite. Waits for the device."""

    def take(self, out: Bytes) -> int:
        """Write the body to `out` and return its length. Waits for the work given to the stream."""


class Change(Protocol):
    """Addition of payloads to weights on a device."""

    def add(self, payload: Payload) -> None:
        """Add the decoded values to the weights. Raise PayloadError and leave the weights unchanged if the payload is invalid."""


class DeviceCodec(Protocol):
    """A codec for arrays on a device. `text` is the text of its kernels, or empty if torch's own kernels suffice."""

    @property
    def text(self) -> str: ...

    def encoder(self, shape: Shape) -> DeviceEncoder:
        """Return an encoder of arrays of `shape`. The encoder allocates memory of their size on the device."""

    def change(self, codec: Codec, weights: torch.Tensor) -> Change:
        """Return an object that adds payloads of `codec`, this codec or its contractive form, to the flat `weights`."""

    def difference(self) -> str:
        """Return the name of the first result that differs from the host's; empty if there is no difference."""
