"""The kernel that codes rows and computes the inner products of the rows with their decoded values. CuPy launches it."""

from __future__ import annotations

import numpy as np

from psnode.codecs.device.cupy.row_kernels import EncodeArrays, Loaded, nbytes_of_sums
from psnode.codecs.rows.formula import rows_of

SUMS = 2  # <x, y> and <y, y>


class ProductKernels(Loaded):
    """The kernels of a contractive form."""

    names = ("measure", "fold_sums")

    def measure(self, stream: int, arrays: EncodeArrays, size: int, count: int, to: int) -> None:
        """Code `count` rows, which hold `size` coordinates, and write two inner products to `to`. `arrays.error` is workspace.

        With y the decoded x, <x, y> and <y, y> are written as two float64. They are meaningless if x has a value that is not
        finite. `arrays.error` points to `nbytes_of_products` bytes.
        """
        rows = rows_of(size)
        addresses = [np.uint64(address) for address in arrays[:-2]]
        self._launch("measure", stream, count, *addresses, *map(np.uint32, (rows, count, size)))
        self._fold(stream, arrays.error, arrays.error + 8 * SUMS * rows, to, rows, SUMS)


def nbytes_of_products(size: int) -> int:
    """Return the number of bytes that `measure` needs for the partial sums of the rows."""
    return nbytes_of_sums(size, SUMS)
