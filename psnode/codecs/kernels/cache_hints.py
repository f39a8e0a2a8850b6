"""Hints to the processor that change the speed of a kernel but never its results, and a function that copies arrays.

A kernel that works on one block at a time in the first-level cache leaves the memory idle while it computes, unless it
prefetches the next block. On AMD's processors from Zen 1 to Zen 4, kernels do not prefetch.

LLVM avoids vectors of 512 bits, because they slow down early processors that have them. `wide` permits these vectors on
processors that they do not slow down: the Ice Lake family and later ones.
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from psnode.codecs.kernels.jit import inlined
from psnode.codecs.kernels.llvm.instructions import instructions, wide
from psnode.codecs.kernels.llvm.operations import prefetch

__all__ = ["AHEAD", "copy_to", "fetch_row", "fetch_row_to_write", "wide"]

AHEAD = 1024  # float32 values: the distance at which to call `fetch_row` ahead
_ROW = 2048  # bytes of 512 float32


@instructions
def fetch_row(array: npt.NDArray[Any], start: int) -> None:
    """Prefetch 2048 bytes of `array` from element `start` on, for reading. They may extend past its end."""
    prefetch(array, start, _ROW, writing=False)


@instructions
def fetch_row_to_write(array: npt.NDArray[Any], start: int) -> None:
    """Prefetch 2048 bytes of `array` from element `start` on, for writing. They may extend past its end."""
    prefetch(array, start, _ROW, writing=True)


@inlined
def copy_to(source: npt.NDArray[Any], target: npt.NDArray[Any]) -> None:
    """Copy the 1-D `source` to the beginning of the 1-D `target`.

    The loop avoids an assignment to a slice, for which Numba would also compile the code that formats an error about shapes.
    That takes a second or two.
    """
    for i in range(source.size):
        target[i] = source[i]
