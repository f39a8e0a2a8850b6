"""Adding a vector that lies in parts to a target, a stretch at a time, on the way of a kernel through the target.

The parts are named by their addresses, so that one compiled kernel serves any number of them. A row of 512 values is looked
at before it is added: of a part that is not finite nothing is added, and earlier additions can be taken back.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import carray  # type: ignore[attr-defined]

from psnode.codecs.arrays import Floats, Indices, Parts
from psnode.codecs.kernels.jit import kernel
from psnode.codecs.kernels.llvm.instructions import floats_at
from psnode.codecs.kernels.memory import AHEAD, fetch_row, fetch_row_to_write, wide

ROW = 512
NOT_FINITE = -1
_INFINITY = 0x7F800000
_MAGNITUDE = 0x7FFFFFFF


class PartTable(NamedTuple):
    """Parts that are to be added to `target` (flat).

    Part k holds coordinates starts[k]..stops[k]-1, ascending, at addresses[k]. reached[0]: the coordinates below have been
    added. Whoever has a table keeps the parts' memory alive.
    """

    starts: Indices
    stops: Indices
    addresses: Indices
    target: Floats
    reached: Indices


def table_of(parts: Parts, target: Floats) -> PartTable:
    """The table of contiguous `parts` of the flat `target`."""
    table = np.empty((3, len(parts)), np.int64)
    for k, (place, part) in enumerate(parts):
        table[:, k] = place, place + part.size, part.ctypes.data
    return PartTable(table[0], table[1], table[2], target, np.zeros(1, np.int64))


NO_PARTS = table_of((), np.empty(0, np.float32))


@kernel
def add_parts(parts: PartTable, first: int, start: int, stop: int) -> int:
    """Add the parts' values of target[start:stop], the stretches coming in order and without gaps.

    `first`: the result for the stretch before, 0 at the beginning. Returns NOT_FINITE at a row of a part that is
    not finite; `reached` tells up to where has been added then.
    """
    wide()
    while first < parts.starts.size and parts.starts[first] < stop:
        begin = max(parts.starts[first], start)
        end = min(parts.stops[first], stop)
        if begin < end:
            address = parts.addresses[first] + 4 * (begin - parts.starts[first])
            values = carray(floats_at(address), end - begin)
            bits, total = values.view(np.uint32), parts.target[begin:end]
            for row in range(0, end - begin, ROW):
                fetch_row(values, row + AHEAD)
                fetch_row_to_write(total, row + AHEAD)
                magnitudes = bits[row : row + ROW]
                top = np.uint32(0)
                for i in range(magnitudes.size):
                    top = max(top, np.uint32(magnitudes[i] & np.uint32(_MAGNITUDE)))
                if top >= np.uint32(_INFINITY):
                    return NOT_FINITE
                here, there = values[row : row + ROW], total[row : row + ROW]
                for i in range(here.size):
                    there[i] += here[i]
                parts.reached[0] = begin + row + here.size
        if parts.stops[first] > stop:
            break
        first += 1
    return first
