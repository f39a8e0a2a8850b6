"""The kernels of a selection on a device, launched by CuPy."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from psnode.codecs.device.cupy.row_kernels import Loaded

BLOCK_ROWS = 8  # as in select.h
ROOM = 2 * 512 * BLOCK_ROWS  # bytes for the list of a block's coordinates


class Lists(NamedTuple):
    """Addresses of lists of coordinates, one list for each of `blocks` blocks.

    `counts`: uint32 lengths of the lists. `ends`: uint32 cumulative lengths. `rooms`: ROOM bytes per block.
    """

    counts: int
    ends: int
    rooms: int
    blocks: int


class SelectionKernels(Loaded):
    """Kernels that find coordinates by their rank among flat float32 values, padded with zeros to the end of a row."""

    names = ("mark", "collect", "square_rows", "norm_of_rows")

    def mark(self, stream: int, x: int, limit: int, rows: int, lists: Lists) -> None:
        """List, for each block, its coordinates whose rank is at least `limit` >= 1, and count them."""
        numbers = map(np.uint32, (limit, rows, lists.blocks))
        self._launch("mark", stream, lists.blocks, np.uint64(x), np.uint64(lists.counts), np.uint64(lists.rooms), *numbers)

    def collect(self, stream: int, x: int, lists: Lists, indices: int, values: int) -> None:
        """Write the ascending indices (uint32) and the values (float32) of the listed coordinates.

        The number of these coordinates is the last entry of `lists.ends`.
        """
        addresses = map(np.uint64, (x, lists.rooms, lists.counts, lists.ends, indices, values))
        self._launch("collect", stream, lists.blocks, *addresses, np.uint32(lists.blocks))

    def norm(self, stream: int, x: int, sums: int, rows: int) -> None:
        """Write the L2 norm of all values to the first float64 at `sums`, which has room for `rows` of them.

        The sums of the rows' squares are added one after another.
        """
        arguments = np.uint64(x), np.uint64(sums), np.uint32(rows)
        self._launch("square_rows", stream, rows, *arguments)
        self._launch("norm_of_rows", stream, 1, *arguments)
