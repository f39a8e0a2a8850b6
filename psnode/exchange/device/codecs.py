"""Codecs on a device: how the arrays of each are coded where they lie, and what its payloads add to weights there."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from psnode.codecs import Codec, Payload
from psnode.codecs.arrays import Bytes, Shape, Words
from psnode.exchange.device.change import ChangeOfEntries, ChangeOfRows
from psnode.exchange.device.coder import DeviceCoder, OnDevice, kernels_for
from psnode.exchange.device.differences import difference_of_encoder, difference_of_entries, difference_of_rows
from psnode.exchange.device.selected import SelectedEncoder, selector_of
from psnode.exchange.device.spectral import Spectral, SpectralChange, SpectralEncoder, is_spectral
from psnode.exchange.device.spectral_trust import problem

if TYPE_CHECKING:
    from psnode.codecs.rows.cupy_selection import SelectionKernels
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
    if is_spectral(codec):
        return SpectralOnDevice(codec, device)
    if (kernels := kernels_for(codec, device)) is not None:
        return RowsOnDevice(codec, kernels, device)
    if (selection := selection_for(codec, device)) is not None:
        return SelectionOnDevice(codec, selection, device)
    return None


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

    def encoder(self, shape: Shape) -> RowEncoder:
        return RowEncoder(self._codec, self._kernels, shape, self._device)

    def change(self, codec: Codec, weights: torch.Tensor) -> ChangeOfRows:
        return ChangeOfRows(codec, self._kernels, weights)

    def difference(self) -> str:
        program, kernels = self._kernels
        return difference_of_rows(self._codec, program, OnDevice(kernels, self._device))


class RowEncoder(DeviceCoder):
    """Rows coded on a device, behind the parameters that a codec of one's own begins its body with."""

    def __init__(self, codec: Codec, kernels: CodecKernels, shape: Shape, device: torch.device) -> None:
        from psnode.codecs.rows.codec import preamble

        super().__init__(*kernels, math.prod(shape), device)
        self._head = np.frombuffer(preamble(codec), np.uint8)

    def take(self, out: Bytes) -> int:
        start = self._head.size
        out[:start] = self._head
        return start + super().take(out[start:])


class SelectionOnDevice:
    """A codec that selects coordinates."""

    def __init__(self, codec: Codec, kernels: SelectionKernels, device: torch.device) -> None:
        self._codec, self._kernels, self._device = codec, kernels, device

    @property
    def text(self) -> str:
        return self._kernels.text

    def encoder(self, shape: Shape) -> SelectedEncoder:
        return SelectedEncoder(self._codec, self._kernels, shape, self._device)

    def change(self, codec: Codec, weights: torch.Tensor) -> ChangeOfEntries:
        return ChangeOfEntries(codec, weights)

    def difference(self) -> str:
        return difference_of_encoder(self._codec, self.encoder, self._device) or difference_of_entries(self._codec, self._device)


class SpectralOnDevice:
    """Spectral ATOMO, alone or with a stage behind it."""

    text = ""

    def __init__(self, codec: Spectral, device: torch.device) -> None:
        self._codec, self._device = codec, device

    def encoder(self, shape: Shape) -> SpectralEncoder:
        return SpectralEncoder(self._codec, shape, self._device)

    def change(self, codec: Codec, weights: torch.Tensor) -> SpectralChange:
        return SpectralChange(codec, weights)

    def difference(self) -> str:
        return problem(self._codec, self._device)
