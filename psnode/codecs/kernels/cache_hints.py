"""Hints to the processor, which change how fast a kernel is and never its results; and copies.

A kernel that works on one block at a time in the first-level cache lets the memory idle while it computes, unless the next
block is asked for beforehand; on AMD's processors up to Zen 4 it does not, and asks for nothing. And processors of the Ice Lake
family and later lose nothing with vectors of 512 bits, which LLVM avoids for the sake of earlier ones.
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from psnode.codecs.kernels.jit import inlined
from psnode.codecs.kernels.llvm.instructions import instructions, wide
from psnode.codecs.kernels.llvm.operations import prefetch

__all__ = ["AHEAD", "copy_to", "fetch_row", "fetch_row_to_write", "wide"]

AHEAD = 1024  # float32 values: how far ahead `fetch_row` is to be asked
_ROW = 2048  # bytes: 512 float32


@instructions
def fetch_row(array: npt.NDArray[Any], start: int) -> None:
    """Ask for the 2048 bytes of `array` from element `start` on, to read them. They may lie beyond its end."""
    prefetch(array, start, _ROW, writing=False)


@instructions
def fetch_row_to_write(array: npt.NDArray[Any], start: int) -> None:
    """Ask for the 2048 bytes of `array` from element `start` on, to write them. They may lie beyond its end."""
    prefetch(array, start, _ROW, writing=True)


@inlined
def copy_to(source: npt.NDArray[Any], target: npt.NDArray[Any]) -> None:
    """The values of `source` at the beginning of `target`, one dimension each.

    Assigning to a slice would compile the text of an error about shapes along with it, which takes a second or two.
    """
    for i in range(source.size):
        target[i] = source[i]
