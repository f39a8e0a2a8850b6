"""Rows of 32 lanes, one of each of 32 blocks that are coded side by side."""

from __future__ import annotations

from typing import Any

from psnode.codecs.kernels.llvm import operations
from psnode.codecs.kernels.llvm.instructions import instructions

LANES = 32


def load_row(array: Any, row: Any) -> Any:
    """The lanes of row `row`."""
    return operations.load(array, LANES * row, LANES)


def store_row(array: Any, row: Any, value: Any) -> None:
    """Write the lanes of row `row`."""
    operations.store(array, LANES * row, value)


@instructions
def moves_lanes() -> bool:
    """True if lanes can be moved together and apart: known when a kernel is compiled."""
    return operations.moves()
