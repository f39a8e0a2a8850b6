"""Interfaces of codecs on a device: encoders, changes of weights, and the codecs that make them."""

from __future__ import annotations

from typing import Protocol

import torch

from psnode.codecs import Codec, Payload
from psnode.codecs.arrays import Bytes, Shape, Words


class DeviceEncoder(Protocol):
    """Encoder of arrays of one size on a device. `padded` is the length of an array, including its padding with zeros."""

    padded: int

    def encode(self, x: torch.Tensor, key: Words, error: torch.Tensor | None = None) -> None:
        """Code `x` (flat) on the current stream, and write x - decoded to `error`, which may be `x`.

        The error is complete after `take`.
        """

    @property
    def is_finite(self) -> bool:
        """True unless the last array had a value that is not finite. Waits for the device."""

    def take(self, out: Bytes) -> int:
        """Write the body to `out` and return its length. Waits for the work that was given to the stream."""


class Change(Protocol):
    """An object that adds payloads to weights on a device."""

    def add(self, payload: Payload) -> None:
        """Add the decoded values to the weights. Raise PayloadError and leave the weights unchanged if the payload is invalid."""


class DeviceCodec(Protocol):
    """A codec for arrays on a device. `text` is the text of its kernels, or empty if torch's own kernels suffice."""

    @property
    def text(self) -> str: ...

    def encoder(self, shape: Shape) -> DeviceEncoder:
        """Return an encoder of arrays of `shape`.

        The encoder allocates memory on the device, in proportion to the arrays' size.
        """

    def change(self, codec: Codec, weights: torch.Tensor) -> Change:
        """Return an object that adds payloads of `codec` to the flat `weights`. `codec` is this codec or its contractive form."""

    def difference(self) -> str:
        """Return a line about the first result that differs from the host's, or an empty string if there is no difference."""
