"""Rows of 32 lanes, one for each of 32 blocks that are coded in parallel."""

from __future__ import annotations

from typing import Any

from psnode.codecs.kernels.llvm import operations

LANES = 32
MOVES_LANES = operations.moves()  # a constant for Numba, which leaves out the branches that are not taken


def load_row(array: Any, row: Any) -> Any:
    """Return the lanes of row `row`."""
    return operations.load(array, LANES * row, LANES)


def store_row(array: Any, row: Any, value: Any) -> None:
    """Write the lanes of row `row`."""
    operations.store(array, LANES * row, value)
