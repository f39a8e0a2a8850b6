"""Codecs on a device: they encode arrays on the device, and add payloads to weights on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from psnode.codecs import Codec
from psnode.codecs.arrays import Shape
from psnode.codecs.device.change import ChangeOfEntries, ChangeOfRows, decoder
from psnode.codecs.device.contractive_forms import ContractiveRows, ContractiveSelected, spectral_encoder
from psnode.codecs.device.differences import difference_of_encoder, difference_of_entries, difference_of_rows
from psnode.codecs.device.protocols import DeviceCodec, DeviceEncoder
from psnode.codecs.device.row_coder import RowEncoder, kernels_for
from psnode.codecs.device.row_functions import RowFunctions
from psnode.codecs.device.selected import SelectedEncoder, selector_of
from psnode.codecs.device.spectral import SpectralChange, is_spectral
from psnode.codecs.device.spectral_checks import problem

if TYPE_CHECKING:
    from psnode.codecs.device.cupy.product_kernels import ProductKernels
    from psnode.codecs.device.cupy.selection_kernels import SelectionKernels
    from psnode.codecs.device.row_coder import CodecKernels
    from psnode.codecs.rows.formula import Program


def on_device(codec: Codec, device: torch.device) -> DeviceCodec | None:
    """Return the form of `codec` on `device`, or None if it has no device form. Kernels are compiled unless they are cached.

    Raise ConfigurationError if the codec needs kernels and CuPy is missing.
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
    """Return the kernels that code the contractive form of the codec of `program`, or None if its packing is in blocks."""
    from psnode.codecs.device.cupy.product_kernels import ProductKernels
    from psnode.codecs.rows.cuda.text import measuring_text_of

    return None if program.packed.in_blocks else ProductKernels(measuring_text_of(program), device.index or 0)


def selection_for(codec: Codec, device: torch.device) -> SelectionKernels | None:
    """Return the kernels with which `codec` selects coordinates, or None if it does not select."""
    from psnode.codecs.device.cupy.selection_kernels import SelectionKernels
    from psnode.codecs.rows.known.selections import MagnitudeRanks
    from psnode.codecs.rows.selection_rank import text_of

    return None if selector_of(codec) is None else SelectionKernels(text_of(MagnitudeRanks()), device.index or 0)


class RowsOnDevice:
    """The device form of a codec whose kernels code rows."""

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
        return difference_of_rows(self._codec, program, RowFunctions(kernels, self._device))


class ContractiveRowsOnDevice(RowsOnDevice):
    """The device form of the contractive form of a codec whose kernels code rows."""

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
    """The device form of a codec that selects coordinates, or of its contractive form."""

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
    """The device form of spectral ATOMO, of a chain that begins with it, or of the contractive form of either."""

    text = ""

    def __init__(self, codec: Codec, device: torch.device) -> None:
        self._codec, self._device = codec, device

    def encoder(self, shape: Shape) -> DeviceEncoder:
        return spectral_encoder(self._codec, shape, self._device)

    def change(self, codec: Codec, weights: torch.Tensor) -> SpectralChange:
        return SpectralChange(codec, weights)

    def difference(self) -> str:
        return problem(self._codec, self._device)
