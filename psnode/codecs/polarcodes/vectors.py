"""Rows of 32 lanes, one for each of 32 blocks that are coded in parallel."""

from __future__ import annotations

from typing import Any

from psnode.codecs.kernels.llvm.lane_moves import moves
from psnode.codecs.kernels.llvm.operations import load, store

LANES = 32
MOVES_LANES = moves()  # a constant for Numba, which leaves out the branches that are not taken


def load_row(array: Any, row: Any) -> Any:
    """Return the 32 lanes of row `row` of an array."""
    return load(array, LANES * row, LANES)


def store_row(array: Any, row: Any, value: Any) -> None:
    """Write 32 lanes to row `row` of an array."""
    store(array, LANES * row, value)
