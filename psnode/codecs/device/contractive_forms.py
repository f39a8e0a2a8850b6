"""Contractive forms on a device: see psnode.codecs.contractive. Their factor is known only after all values are coded.

Therefore the method `take` of these encoders writes x - decoded to the error in a second sweep. If x is not finite, the error
keeps the values of x.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np
import torch

from psnode.codecs import Codec
from psnode.codecs.arrays import Bytes, Shape, Words, readonly
from psnode.codecs.chain import Chain
from psnode.codecs.contractive import factor
from psnode.codecs.device import tree_sums
from psnode.codecs.device.change import decoder
from psnode.codecs.device.row_coder import RowEncoder
from psnode.codecs.device.selected import SelectedEncoder
from psnode.codecs.device.spectral import Spectral, SpectralEncoder, add_parted, is_spectral
from psnode.codecs.kernels.dots import tree_products

if TYPE_CHECKING:
    from psnode.codecs.device.cupy.product_kernels import ProductKernels
    from psnode.codecs.device.cupy.row_kernels import EncodeArrays
    from psnode.codecs.device.cupy.selection_kernels import SelectionKernels
    from psnode.codecs.device.protocols import DeviceEncoder
    from psnode.codecs.device.row_coder import CodecKernels

HEAD = 4  # bytes of the factor


class ContractiveRows(RowEncoder):
    """The contractive form of `codec`, which codes rows.

    The coding kernel also computes the inner products that give the factor. The kernel that adds payloads to weights computes
    the error.
    """

    def __init__(self, codec: Codec, kernels: CodecKernels, products: ProductKernels, shape: Shape, device: torch.device) -> None:
        from psnode.codecs.device.cupy.product_kernels import SUMS, nbytes_of_products

        super().__init__(codec, kernels, shape, device)
        self._measuring = products
        self._parts = torch.empty(nbytes_of_products(self._size), dtype=torch.uint8, device=device)
        self._products = torch.zeros(SUMS, dtype=torch.float64, device=device)
        self._error: torch.Tensor | None = None

    def encode(self, x: torch.Tensor, key: Words, error: torch.Tensor | None = None) -> None:
        """Code `x` and write `body`. The error is written later, by `take`."""
        self._error = _begun(x, error)
        super().encode(x, key)

    def _code(self, stream: int, arrays: EncodeArrays) -> None:
        places = arrays._replace(error=self._parts.data_ptr())
        self._measuring.measure(stream, places, self._size, self._count, self._products.data_ptr())

    def take(self, out: Bytes) -> int:
        """Write the body to `out` and return its length. If the array is not finite, write nothing and return 0.

        Waits for the device.
        """
        if not self.is_finite:
            return 0
        used = super().take(out[HEAD:])
        xy, yy = self._products.tolist()
        scale = _write_factor(xy, yy, out)
        if self._error is not None:
            self.decode(self._error, -float(scale), adding=True)
        return HEAD + used


class _Behind(ABC):
    """Base of contractive forms that compute the factor from the body after `encoder` has written it."""

    def __init__(self, encoder: DeviceEncoder) -> None:
        self._encoder, self.padded = encoder, encoder.padded

    def encode(self, x: torch.Tensor, key: Words, error: torch.Tensor | None = None) -> None:
        """Code `x` (flat float32). The error is written later, by `take`."""
        self._x, self._error = x, _begun(x, error)
        self._encoder.encode(x, key)

    @property
    def is_finite(self) -> bool:
        """True unless the last array had a value that is not finite. Waits for the device."""
        return self._encoder.is_finite

    def take(self, out: Bytes) -> int:
        """Write the body to `out` and return its length. If the array is not finite, write nothing and return 0.

        Waits for the device.
        """
        if not self.is_finite:
            return 0
        used = self._encoder.take(out[HEAD:])
        self._scale(readonly(out[HEAD : HEAD + used]), out)
        return HEAD + used

    @abstractmethod
    def _scale(self, body: Bytes, out: Bytes) -> None:
        """Write the factor for `body` to `out`, and complete the error."""


class ContractiveSelected(_Behind):
    """The contractive form of `codec`, a selection followed by a stage that codes its values.

    The stage after the selection runs on the host. The host also computes the inner products of the selected values and their
    decoded values.
    """

    _encoder: SelectedEncoder

    def __init__(self, codec: Codec, kernels: SelectionKernels, shape: Shape, device: torch.device) -> None:
        super().__init__(SelectedEncoder(codec, kernels, shape, device))
        assert isinstance(codec, Chain), codec
        self._chain, self._shape = codec, shape

    def _scale(self, body: Bytes, out: Bytes) -> None:
        there = self._encoder.indices.long()
        _, decoded = self._chain.parted(body, self._shape)
        scale = _write_factor(*tree_products(self._x[there].cpu().numpy(), decoded), out)
        if self._error is not None:
            self._error[there] = self._error[there] + torch.tensor(-scale * decoded).to(self._error.device)


class ContractiveSpectral(_Behind):
    """The contractive form of the spectral `codec`. The device decodes the whole matrix to separate memory to find the factor."""

    def __init__(self, codec: Spectral, shape: Shape, device: torch.device) -> None:
        super().__init__(SpectralEncoder(codec, shape, device))
        self._codec, self._shape = codec, shape

    def _scale(self, body: Bytes, out: Bytes) -> None:
        parts = self._codec.parted(body, self._shape)
        decoded = torch.zeros_like(self._x[: self.padded])
        add_parted(*parts, self._shape, decoded, np.float32(1))
        xy, yy = tree_sums.tree_products(self._x[: self.padded], decoded).tolist()
        scale = _write_factor(xy, yy, out)
        if self._error is not None:
            add_parted(*parts, self._shape, self._error[: self.padded], -scale)


def spectral_encoder(codec: Codec, shape: Shape, device: torch.device) -> SpectralEncoder | ContractiveSpectral:
    """Return the encoder of `codec`: spectral ATOMO, alone or in a chain, or its contractive form."""
    inner = decoder(codec)
    assert is_spectral(inner), codec
    return (SpectralEncoder if inner is codec else ContractiveSpectral)(inner, shape, device)


def _begun(x: torch.Tensor, error: torch.Tensor | None) -> torch.Tensor | None:
    """Copy x to `error`, unless both are in the same memory, and return `error`."""
    if error is not None and error.data_ptr() != x.data_ptr():
        error.copy_(x)
    return error


def _write_factor(xy: float, yy: float, out: Bytes) -> np.float32:
    """Write the factor to the first bytes of `out`, before the body, and return the factor."""
    scale = factor(xy, yy)
    out[:HEAD].view(np.float32)[0] = scale
    return scale
