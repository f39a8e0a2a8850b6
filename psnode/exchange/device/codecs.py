"""Codecs on a device: how the arrays of each are coded where they lie, and what its payloads add to weights there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

from psnode.codecs import Codec, Payload
from psnode.codecs.arrays import Bytes, Shape, Words
from psnode.exchange.device.change import ChangeOfEntries, ChangeOfRows, decoder
from psnode.exchange.device.coder import OnDevice, RowEncoder, kernels_for
from psnode.exchange.device.contractive import ContractiveRows, ContractiveSelected, spectral_encoder
from psnode.exchange.device.differences import difference_of_encoder, difference_of_entries, difference_of_rows
from psnode.exchange.device.selected import SelectedEncoder, selector_of
from psnode.exchange.device.spectral import SpectralChange, is_spectral
from psnode.exchange.device.spectral_trust import problem

if TYPE_CHECKING:
    from psnode.codecs.rows.cupy_products import ProductKernels
    from psnode.codecs.rows.cupy_selection import SelectionKernels
    from psnode.codecs.rows.formula import Program
    from psnode.exchange.device.coder import CodecKernels


class DeviceEncoder(Protocol):
    """Coding of arrays of one size on a device; `padded`: float32 values that such an array has room for, zeros behind it."""

    padded: int

    def encode(self, x: torch.Tensor, key: Words, error: torch.Tensor | None = None) -> None:
        """Code `x`, flat, on the current stream, and leave x - decoded in `error`, which may be `x`: done behind `take`."""

    @property
    def is_finite(self) -> bool:
        """True unless the last array had a value that is not finite; waits for the device."""

    def take(self, out: Bytes) -> int:
        """Write the body to `out`; its length. Waits for what was given to the stream."""


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
        """Name what is made otherwise than on the host; empty if nothing is."""


def on_device(codec: Codec, device: torch.device) -> DeviceCodec | None:
    """`codec` on `device`, with kernels compiled now unless they are cached; None if it has no form there.

    ConfigurationError if it has kernels and CuPy is absent.
    """
    inner = decoder(codec)
    if is_spectral(inner):
        return SpectralOnDevice(codec, device)
    if (kernels := kernels_for(inner, device)) is not None:
        if inner is codec:
            return RowsOnDevice(codec, kernels, device)
        products = products_for(kernels[0], device)
        return None if products is None else ContractiveRowsOnDevice(codec, kernels, products, device)
    if (selection := selection_for(inner, device)) is not None:
        return SelectionOnDevice(codec, selection, device)
    return None


def products_for(program: Program, device: torch.device) -> ProductKernels | None:
    """The kernels by which the contractive form of a program's codec is coded; None of a packing in blocks."""
    from psnode.codecs.rows.cuda_text import measuring_text_of
    from psnode.codecs.rows.cupy_products import ProductKernels

    return None if program.packed.in_blocks else ProductKernels(measuring_text_of(program), device.index or 0)


def selection_for(codec: Codec, device: torch.device) -> SelectionKernels | None:
    """The kernels by which `codec` selects coordinates; None if it selects none."""
    from psnode.codecs.rows.cupy_selection import SelectionKernels
    from psnode.codecs.rows.known.selections import MagnitudeRanks
    from psnode.codecs.rows.ranks import text_of

    return None if selector_of(codec) is None else SelectionKernels(text_of(MagnitudeRanks()), device.index or 0)


class RowsOnDevice:
    """A codec whose kernels code rows."""

    def __init__(self, codec: Codec, kernels: CodecKernels, device: torch.device) -> None:
        self._codec, self._kernels, self._device = codec, kernels, device

    @property
    def text(self) -> str:
        return self._kernels[1].text

    def encoder(self, shape: Shape) -> DeviceEncoder:
        return RowEncoder(self._codec, self._kernels, shape, self._device)

    def change(self, codec: Codec, weights: torch.Tensor) -> ChangeOfRows:
        return ChangeOfRows(codec, self._kernels, weights)

    def difference(self) -> str:
        program, kernels = self._kernels
        return difference_of_rows(self._codec, program, OnDevice(kernels, self._device))


class ContractiveRowsOnDevice(RowsOnDevice):
    """The contractive form of a codec whose kernels code rows."""

    def __init__(self, codec: Codec, kernels: CodecKernels, products: ProductKernels, device: torch.device) -> None:
        super().__init__(decoder(codec), kernels, device)
        self._whole, self._products = codec, products

    @property
    def text(self) -> str:
        return super().text + self._products.text

    def encoder(self, shape: Shape) -> ContractiveRows:
        return ContractiveRows(self._codec, self._kernels, self._products, shape, self._device)

    def difference(self) -> str:
        return super().difference() or difference_of_encoder(self._whole, self.encoder, self._device)


class SelectionOnDevice:
    """A codec that selects coordinates, or the contractive form of one."""

    def __init__(self, codec: Codec, kernels: SelectionKernels, device: torch.device) -> None:
        self._codec, self._kernels, self._device = codec, kernels, device

    @property
    def text(self) -> str:
        return self._kernels.text

    def encoder(self, shape: Shape) -> DeviceEncoder:
        make = SelectedEncoder if decoder(self._codec) is self._codec else ContractiveSelected
        return make(decoder(self._codec), self._kernels, shape, self._device)

    def change(self, codec: Codec, weights: torch.Tensor) -> ChangeOfEntries:
        return ChangeOfEntries(codec, weights)

    def difference(self) -> str:
        return difference_of_encoder(self._codec, self.encoder, self._device) or difference_of_entries(self._codec, self._device)


class SpectralOnDevice:
    """Spectral ATOMO, alone or with a stage behind it, or the contractive form of that."""

    text = ""

    def __init__(self, codec: Codec, device: torch.device) -> None:
        self._codec, self._device = codec, device

    def encoder(self, shape: Shape) -> DeviceEncoder:
        return spectral_encoder(self._codec, shape, self._device)

    def change(self, codec: Codec, weights: torch.Tensor) -> SpectralChange:
        return SpectralChange(codec, weights)

    def difference(self) -> str:
        return problem(self._codec, self._device)
