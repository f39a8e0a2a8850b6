"""The kernel that codes rows and computes their inner products with the decoded rows, launched by CuPy."""

from __future__ import annotations

import numpy as np

from psnode.codecs.device.cupy.row_kernels import EncodeArrays, Loaded, nbytes_of_sums
from psnode.codecs.rows.formula import rows_of

SUMS = 2  # <x, y> and <y, y>


class ProductKernels(Loaded):
    """The kernels of a contractive form."""

    names = ("measure", "fold_sums")

    def measure(self, stream: int, arrays: EncodeArrays, size: int, count: int, to: int) -> None:
        """Code `count` rows, which hold `size` coordinates. `arrays.error` points to `nbytes_of_products` bytes.

        <x, y> and <y, y>, with y the decoded x, are written to `to`, two float64. They are meaningless unless all of x is finite.
        """
        rows = rows_of(size)
        addresses = [np.uint64(address) for address in arrays[:-2]]
        self._launch("measure", stream, count, *addresses, *map(np.uint32, (rows, count, size)))
        self._fold(stream, arrays.error, arrays.error + 8 * SUMS * rows, to, rows, SUMS)


def nbytes_of_products(size: int) -> int:
    """Return the number of bytes that `measure` needs for the parts of rows."""
    return nbytes_of_sums(size, SUMS)
