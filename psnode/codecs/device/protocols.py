"""Interfaces of the forms that codecs have on a device."""

from __future__ import annotations

from typing import Protocol

import torch

from psnode.codecs import Codec, Payload
from psnode.codecs.arrays import Bytes, Shape, Words


class DeviceEncoder(Protocol):
    """Coding of arrays of one size on a device; `padded`: the length of such an array with its padding, zeros."""

    padded: int

    def encode(self, x: torch.Tensor, key: Words, error: torch.Tensor | None = None) -> None:
        """Code `x`, flat, on the current stream, and leave x - decoded in `error`, which may be `x`: complete after `take`."""

    @property
    def is_finite(self) -> bool:
        """True unless the last array had a value that is not finite; waits for the device."""

    def take(self, out: Bytes) -> int:
        """Write the body to `out`; its length. Waits for the work given to the stream."""


class Change(Protocol):
    """Addition of payloads to weights on a device."""

    def add(self, payload: Payload) -> None:
        """Weights += decoded. PayloadError, with the weights as they were."""


class DeviceCodec(Protocol):
    """A codec whose arrays lie on a device. `text`: of its kernels; empty if torch's own are all it takes."""

    @property
    def text(self) -> str: ...

    def encoder(self, shape: Shape) -> DeviceEncoder:
        """Coding of arrays of `shape`; memory of their size is taken on the device."""

    def change(self, codec: Codec, weights: torch.Tensor) -> Change:
        """Payloads of `codec`, which is this one or its contractive form, added to flat `weights`."""

    def difference(self) -> str:
        """Name the first result that differs from the host's; empty if none does."""
