"""Selections of arrays on a device. The device finds the entries to send and, if they are few, codes their indices."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from psnode.codecs import Codec
from psnode.codecs.arrays import Bytes, Shape, Words, readonly
from psnode.codecs.bf16 import Bf16
from psnode.codecs.chain import Chain
from psnode.codecs.device.device_search import DeviceEntries, DeviceSearch
from psnode.codecs.device.gap_code import written
from psnode.codecs.device.staging_buffer import StagingBuffer
from psnode.codecs.fp16 import Fp16
from psnode.codecs.selection.selector import Selector
from psnode.codecs.stages import write_section

if TYPE_CHECKING:
    from psnode.codecs.device.cupy.selection_kernels import SelectionKernels

_HALVES: dict[type[Codec], tuple[torch.dtype, float]] = {  # with the largest finite number
    Fp16: (torch.float16, 65504.0),
    Bf16: (torch.bfloat16, float.fromhex("0x1.fep127")),
}


def selector_of(codec: Codec) -> Selector | None:
    """Return the stage of `codec` that selects coordinates, or None if there is none."""
    first = codec.reducer if isinstance(codec, Chain) else codec
    return first if isinstance(first, Selector) else None


class SelectedEncoder:
    """Encoder of a selection, alone or in a chain, for arrays of `shape`: a DeviceEncoder.

    Values are copied to the host as float32, or as 16-bit numbers if fp16 or bf16 follows as the last stage. All other stages
    after the selection run on the host and receive the float32 values.
    """

    def __init__(self, codec: Codec, kernels: SelectionKernels, shape: Shape, device: torch.device) -> None:
        from psnode.codecs.rows.formula import rows_of
        from psnode.codecs.rows.language import ROW

        selector = selector_of(codec)
        assert selector is not None, codec
        self._codec, self._selector, self._kernels = codec, selector, kernels
        self._shape, self._size = shape, math.prod(shape)
        self.padded = rows_of(self._size) * ROW
        self._room = StagingBuffer(codec.max_nbytes(shape), device)

    def encode(self, x: torch.Tensor, key: Words, error: torch.Tensor | None = None) -> None:
        """Find the entries of `x` to send.

        After `take`, `error` (which may be `x`) holds x - decoded, or x itself if x is not finite.
        """
        search = DeviceSearch(x, self._size, self._kernels)
        self._key = np.array(key, np.uint64)
        self._found, self._search = self._selector._select(search, self._key), search
        if error is not None and error.data_ptr() != x.data_ptr():
            error.copy_(x)
        self._error = error
        self._values = self._narrowed()

    @property
    def indices(self) -> torch.Tensor:
        """The ascending flat indices of the entries found last, as int32 on the device."""
        return self._found.indices

    @property
    def is_finite(self) -> bool:
        """True unless the last array had a value that is not finite. Waits for the device."""
        return self._search.is_finite

    def take(self, out: Bytes) -> int:
        """Write the body to `out` and return its length. If the array is not finite, write nothing and return 0.

        Waits for the device.
        """
        if not self.is_finite:
            return 0
        if self._values is not None:
            self._lose(self._values.float())
        used = self._take_indices(self._found, out[4:])
        if self._values is not None:
            start = write_section(out, used)
            end = start + self._values.nbytes
            out[start:end] = self._room.down(self._values.view(torch.uint8))
            return end
        assert isinstance(self._codec, Chain)
        end = self._codec.joined(used, readonly(self._found.values.cpu().numpy()), self._key, out)
        if self._error is not None:
            _, decoded = self._codec.parted(readonly(out[:end]), self._shape)
            self._lose(torch.tensor(decoded).to(self._error.device))
        return end

    def _narrowed(self) -> torch.Tensor | None:
        """Return the selected values in the type in which they are sent, or None if the host must code them."""
        values = self._found.values
        if not isinstance(self._codec, Chain):
            return values
        half = _HALVES.get(type(self._codec.quantiser))
        if half is None or self._codec.lossless_stage is not None:
            return None
        dtype, largest = half
        return values.clamp(-largest, largest).to(dtype)

    def _lose(self, decoded: torch.Tensor) -> None:
        """Subtract the decoded values of the selected entries from the error."""
        if self._error is not None:
            there = self._found.indices.long()
            self._error[there] = self._error[there] - decoded

    def _take_indices(self, found: DeviceEntries, out: Bytes) -> int:
        """Write the coded indices to `out`. Return the number of bytes written."""
        indices = found.known
        if indices is None and (code := written(found.indices, self._size)) is not None:
            first, rest = code
            end = len(first) + rest.numel()
            out[: len(first)] = np.frombuffer(first, np.uint8)
            out[len(first) : end] = self._room.down(rest)
            return end
        if indices is None:
            indices = found.indices.cpu().numpy().view(np.uint32)
        return self._selector._write_indices(indices, self._key, self._size, out)
