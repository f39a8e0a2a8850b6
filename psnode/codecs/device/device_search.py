"""Searches of arrays on a device. The selections of psnode.codecs use them as they use searches on the host."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from psnode.codecs.arrays import Words, Words32
from psnode.codecs.kernels.finite import INFINITY_BITS
from psnode.codecs.kernels.large_values import places
from psnode.codecs.selection.threshold_search import Search

if TYPE_CHECKING:
    from psnode.codecs.device.cupy.selection_kernels import SelectionKernels

MAGNITUDE = 0x7FFFFFFF
_LARGEST = torch.finfo(torch.float32).max


class DeviceEntries(NamedTuple):
    """Selected coordinates on a device: ascending flat indices (int32) and their values (float32).

    If the host has chosen the indices, `known` holds them in the host's memory.
    """

    indices: torch.Tensor
    values: torch.Tensor
    known: Words32 | None = None

    def scaled(self, factor: float) -> DeviceEntries:
        """Return the entries with values multiplied by `factor`, rounded once and limited to the range of float32."""
        return self._replace(values=(self.values.double() * factor).clamp(-_LARGEST, _LARGEST).float())

    def largest(self, most: int) -> DeviceEntries:
        """Return the `most` entries of largest magnitude.

        Among equal magnitudes, the entries with the lowest indices are preferred.
        """
        magnitudes = _magnitudes(self.values)
        limit = _kth_largest(magnitudes, most)
        above, ties = magnitudes > limit, magnitudes == limit
        kept = above | (ties & (torch.cumsum(ties, 0) <= most - above.sum()))
        return DeviceEntries(self.indices[kept], self.values[kept])


class DeviceSearch(Search[DeviceEntries]):
    """A search of the first `size` values of `x` (float32, padded with zeros to the end of a row).

    A call waits for the device only if the host needs a number from it, and copies only this number to the host. Values that
    are not finite raise no error: `is_finite` reports them.
    """

    def __init__(self, x: torch.Tensor, size: int, kernels: SelectionKernels) -> None:
        self._x, self.size, self._kernels = x, size, kernels
        self._is_finite = torch.ones((), dtype=torch.bool, device=x.device)

    @property
    def is_finite(self) -> bool:
        """True unless the search has found a value that is not finite. Waits for the device."""
        return bool(self._is_finite)

    def limit(self, size: int, rank: float, key: Words, stream: int) -> int:
        if rank >= size:
            return 1
        sampled = np.empty(size, np.uint32)
        places(self.size, key, stream, sampled)
        found = _magnitudes(self._x[self._up(sampled)])
        return max(1, int(_kth_largest(found, max(1, math.ceil(rank)))))

    def at_least(self, limit: int, most: int, room: int) -> DeviceEntries:
        from psnode.codecs.device.cupy.selection_kernels import BLOCK_ROWS, ROOM, Lists
        from psnode.codecs.rows.formula import rows_of

        x, rows, stream = self._x, rows_of(self.size), self._stream
        blocks = -(-rows // BLOCK_ROWS)
        counts = torch.empty(blocks, dtype=torch.int32, device=x.device)
        rooms = torch.empty(blocks * ROOM, dtype=torch.uint8, device=x.device)
        lists = Lists(counts.data_ptr(), 0, rooms.data_ptr(), blocks)
        self._kernels.mark(stream, x.data_ptr(), limit, rows, lists)
        ends = torch.cumsum(counts, 0, dtype=torch.int32)
        total = int(ends[-1])
        found = DeviceEntries(
            torch.empty(total, dtype=torch.int32, device=x.device), torch.empty(total, dtype=torch.float32, device=x.device)
        )
        lists = lists._replace(ends=ends.data_ptr())
        if total:
            self._kernels.collect(stream, x.data_ptr(), lists, found.indices.data_ptr(), found.values.data_ptr())
        if total > most:
            found = found.largest(most)
        self._is_finite &= (_magnitudes(found.values) < INFINITY_BITS).all()
        return found

    def at(self, indices: Words32) -> DeviceEntries:
        there = self._up(indices)
        self._is_finite &= torch.isfinite(self._x).all()
        return DeviceEntries(there.int(), self._x[there], indices)

    def root_mean_square(self) -> float:
        from psnode.codecs.rows.formula import rows_of

        self._is_finite &= torch.isfinite(self._x).all()
        if not bool(self._is_finite & self._x.any()):  # for an array of zeros, one warp would add everything sequentially
            return 0.0
        sums = torch.empty(rows_of(self.size), dtype=torch.float64, device=self._x.device)
        self._kernels.norm(self._stream, self._x.data_ptr(), sums.data_ptr(), sums.numel())
        return min(float(sums[0]), _LARGEST) / math.sqrt(self.size)

    @property
    def _stream(self) -> int:
        from psnode.codecs.device.row_coder import stream_of

        return stream_of(self._x.device)

    def _up(self, indices: Words32) -> torch.Tensor:
        return torch.from_numpy(indices.astype(np.int64)).to(self._x.device)


def _magnitudes(values: torch.Tensor) -> torch.Tensor:
    """Return the bits of the magnitudes of float32 values, as integers. They have the same order as the magnitudes."""
    return values.view(torch.int32) & MAGNITUDE


def _kth_largest(values: torch.Tensor, rank: int) -> torch.Tensor:
    """Return the rank-th largest of at least `rank` values.

    The values are sorted, because torch.kthvalue is not allowed in deterministic mode.
    """
    return torch.sort(values).values[values.numel() - rank]
