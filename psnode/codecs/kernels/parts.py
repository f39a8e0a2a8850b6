"""Addition of the parts of a vector to a target, one stretch at a time, while a kernel sweeps over the target.

Parts are given by their addresses, so that one compiled kernel serves any number of parts. Each row of 512 values is checked
before it is added. A row that is not finite is not added, and earlier additions can be undone.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import carray  # type: ignore[attr-defined]

from psnode.codecs.arrays import Floats, Parts
from psnode.codecs.kernels.cache_hints import AHEAD, fetch_row, fetch_row_to_write, wide
from psnode.codecs.kernels.jit import kernel
from psnode.codecs.kernels.llvm.instructions import floats_at, viewed

ROW = 512
STRETCH = 4 * ROW  # a suitable length for add_parts: it stays in the first-level cache
NOT_FINITE = -1
# A plain 0 would have a literal type in Numba, and kernels would be compiled for this type too.
BEGIN: int = np.int64(0)  # type: ignore[assignment]
_INFINITY = 0x7F800000
_MAGNITUDE = 0x7FFFFFFF


# Table of the parts that are added to a flat target. Row 0: the number of coordinates to which parts have been added, the size of
# the target, its address. Rows 1, 2, ...: start, stop and address of a part, in ascending order. The owner of a table keeps the
# memory alive. The table is one array, because a kernel would count references to each array of a tuple.
PartTable = npt.NDArray[np.int64]
START, STOP, ADDRESS = range(3)


def table_of(parts: Parts, target: Floats) -> PartTable:
    """Return the table of `parts`, which are contiguous and are to be added to the flat `target`."""
    rows = [(place, place + part.size, part.ctypes.data) for place, part in parts]
    return np.array([(0, target.size, target.ctypes.data), *rows], np.int64)


NO_PARTS = table_of((), np.empty(0, np.float32))


def reached(parts: PartTable) -> int:
    """Return the number of coordinates to which parts have been added."""
    return int(parts[0, 0])


@kernel
def add_parts(parts: PartTable, first: int, start: int, stop: int) -> int:
    """Add the values of the parts to target[start:stop]. Successive calls must cover the target in order and without gaps.

    `first` is the result of the previous call, or BEGIN. Return NOT_FINITE at a row of a part that is not finite. `reached`
    then returns the number of coordinates that have been completed.
    """
    wide()
    while first + 1 < len(parts) and parts[first + 1, START] < stop:
        part = parts[first + 1]
        begin, end = max(part[START], start), min(part[STOP], stop)
        if begin < end:
            values = carray(floats_at(part[ADDRESS] + 4 * (begin - part[START])), end - begin)
            total = carray(floats_at(parts[0, ADDRESS] + 4 * begin), end - begin)
            bits = viewed(values, np.uint32)
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
                parts[0, 0] = begin + row + here.size
        if part[STOP] > stop:
            break
        first += 1
    return first
