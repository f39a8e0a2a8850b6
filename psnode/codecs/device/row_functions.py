"""Kernels of a program on a device that are called with arrays on the host, so that checks can compare them with the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from psnode.codecs.arrays import Bytes, Floats, Int32s, Words, Words32, readonly
from psnode.codecs.device.row_coder import stream_of
from psnode.codecs.kernels.finite import INFINITY_BITS
from psnode.codecs.kernels.tbq import block_starts

if TYPE_CHECKING:
    from psnode.codecs.device.cupy.row_kernels import Kernels


class RowFunctions:
    """Kernels on a device that are called with arrays on the host, as rows.coder.Functions describes.

    The arrays are copied to the device and back. The class is for checks of the kernels' results, not for speed.
    """

    def __init__(self, kernels: Kernels, device: torch.device) -> None:
        self._kernels, self._device = kernels, device

    def survey(self, x: Floats, tops: Int32s) -> bool:
        from psnode.codecs.rows.formula import rows_of
        from psnode.codecs.rows.language import ROW

        values = self._up(np.resize(x, rows_of(x.size) * ROW))  # repeated values change no extreme
        found = self._up(tops)
        self._kernels.survey(stream_of(self._device), values.data_ptr(), found.data_ptr(), rows_of(x.size))
        self._down(found, tops)
        return bool(tops[0] < INFINITY_BITS)

    def sum_up(self, x: Floats, key: Words, tops: Int32s) -> bool:
        from psnode.codecs.device.cupy.row_kernels import SumArrays, nbytes_of_sums
        from psnode.codecs.rows.formula import FIRST_SUM, rows_of
        from psnode.codecs.rows.language import ROW

        sums, done = tops.size // 2 - FIRST_SUM, np.array([rows_of(x.size)], np.uint32)
        values = self._up(np.concatenate([x, np.zeros(-x.size % ROW, np.float32)]))
        room = self._up(np.empty(nbytes_of_sums(x.size, sums), np.uint8))
        found, undone, words = self._up(tops), self._up(done), self._up(key)
        places = [each.data_ptr() for each in (values, room, found, undone, words)]
        self._kernels.sum_up(stream_of(self._device), SumArrays(*places), x.size, sums)
        self._down(found, tops)
        self._down(undone, done)
        return int(done[0]) == rows_of(x.size)

    def encode(
        self, x: Floats, first: int, key: Words, tops: Int32s, side: Words32, rows: int, packed: Bytes, error: Floats
    ) -> int:
        from psnode.codecs.device.cupy.row_kernels import BLOCK_ROWS, ROOM, EncodeArrays
        from psnode.codecs.rows.language import ROW

        count, done = x.size // ROW, np.array([x.size // ROW], np.uint32)
        over = error.size > 0 and error.ctypes.data == x.ctypes.data
        values, numbers, codes, undone = self._up(x), self._up(side), self._up(packed), self._up(done)
        lost = values if over else self._up(error)
        extremes, words = self._up(tops), self._up(key)
        blocks = count // BLOCK_ROWS if self._kernels.blocks else 0
        units = count // self._kernels.bucket if self._kernels.bucket else blocks
        starts, rooms = self._up(np.zeros(units + 1, np.uint32)), self._up(np.zeros(blocks * ROOM, np.uint8))
        arrays = EncodeArrays(
            values.data_ptr(), lost.data_ptr() if error.size else 0, numbers.data_ptr(), codes.data_ptr(),
            extremes.data_ptr(), undone.data_ptr(), words.data_ptr(), starts.data_ptr(), rooms.data_ptr() if blocks else 0,
        )  # fmt: skip
        self._kernels.encode(stream_of(self._device), arrays, first, rows, count)
        for found, target in ((numbers, side), (codes, packed), (undone, done), (lost, error)):
            self._down(found, target)
        return int(done[0]) * ROW

    def decode(self, side: Words32, rows: int, first: int, packed: Bytes, out: Floats, weight: np.float32, adding: bool) -> None:
        from psnode.codecs.device.cupy.row_kernels import BLOCK_ROWS, DecodeArrays
        from psnode.codecs.rows.language import ROW

        numbers, codes, values = self._up(side), self._up(packed), self._up(out)
        stream, count = stream_of(self._device), out.size // ROW
        starts = self._up(
            block_starts(readonly(packed), count // BLOCK_ROWS) if self._kernels.blocks else np.zeros(count + 1, np.int32)
        )
        if self._kernels.bucket:
            self._kernels.place(stream, numbers.data_ptr(), starts.data_ptr(), first, rows, count)
        arrays = DecodeArrays(numbers.data_ptr(), codes.data_ptr(), values.data_ptr(), starts.data_ptr())
        self._kernels.decode(stream, arrays, float(weight), adding, first, rows, count)
        self._down(values, out)

    def _up(self, array: np.ndarray) -> torch.Tensor:
        """Return a copy of the bytes of `array` on the device."""
        return torch.tensor(np.ascontiguousarray(array).reshape(-1).view(np.uint8), device=self._device)

    @staticmethod
    def _down(found: torch.Tensor, array: np.ndarray) -> None:
        """Copy the bytes of `found`, which is on the device, to `array`. Waits for the work that was given to the stream."""
        array.reshape(-1).view(np.uint8)[:] = found.cpu().numpy()
