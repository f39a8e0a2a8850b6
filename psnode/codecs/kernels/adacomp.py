"""The sweep of adacomp. It adds the parts, splits the sum into bins, and lists the entries to send.

An entry is sent if one more step would lift it to the maximum of its bin. A stretch of whole bins is read from memory once, and
the parts are added to it while it is in the first-level cache.
"""

from __future__ import annotations

import numpy as np
from numba import carray  # type: ignore[attr-defined]

from psnode.codecs.arrays import Bytes, Float64s, Floats, Words32
from psnode.codecs.kernels.cache_hints import wide
from psnode.codecs.kernels.finite import INFINITY_BITS
from psnode.codecs.kernels.jit import kernel
from psnode.codecs.kernels.llvm.instructions import floats_at, viewed
from psnode.codecs.kernels.parts import ADDRESS, START, STOP, PartTable, add_parts

STRETCH = 2048
NEGATIVE = 1 << 31  # added to an index, which is below 2^28
_MAGNITUDE = 0x7FFFFFFF


def stretch_of(length: int) -> int:
    """Return the number of coordinates that a kernel processes at a time. They form whole bins of `length` coordinates."""
    return length * max(1, STRETCH // length)


@kernel
def _newest(parts: PartTable, first: int, start: int, stop: int, fresh: Floats) -> None:
    """Copy the values of the parts in start..stop-1 to `fresh`, with zeros where no part is. `first` is as in add_parts."""
    fresh[:] = 0
    while first + 1 < len(parts) and parts[first + 1, START] < stop:
        part = parts[first + 1]
        begin, end = max(part[START], start), min(part[STOP], stop)
        if begin < end:
            values = carray(floats_at(part[ADDRESS] + 4 * (begin - part[START])), end - begin)
            for i in range(values.size):
                fresh[begin - start + i] = values[i]
        if part[STOP] > stop:
            break
        first += 1


@kernel
def _mark(values: Floats, added: Floats, limit: np.float32, marks: Bytes) -> None:
    """Mark the values that would reach `limit` if the part last added to them were added once more. Zeros are never marked."""
    for i in range(values.size):
        marks[i] = np.uint8(abs(values[i] + added[i]) >= limit) & np.uint8(values[i] != 0)


@kernel
def gather(
    x: Floats, parts: PartTable, length: int, start: int, first: int, found: Words32, count: int, totals: Float64s
) -> tuple[int, int, int]:
    """Append the entries of x to send, from coordinate `start` on, to found[count:].

    An entry is an index, plus NEGATIVE for a value below zero. `parts` are first added to their target, the memory of x.
    Without parts, all of x counts as new. The largest magnitudes of the bins are added to totals[0], and the magnitudes of the
    entries to totals[1].

    Return (stop, first, count). If stop is not the end, `found` has room for less than a stretch, and the scan must continue at
    stop. A count of -1 means that a value at or after stop is not finite.
    """
    wide()
    bits, step = viewed(x, np.uint32), length * max(1, STRETCH // length)
    fresh, limit_bits = np.empty(step, np.float32), np.empty(1, np.uint32)
    marks = np.zeros(step // 8 * 8 + 8, np.uint8)
    words = viewed(marks, np.uint64)
    while start < x.size and count + step <= found.size:
        stop = min(start + step, x.size)
        if len(parts) > 1:
            _newest(parts, first, start, stop, fresh)
            first = add_parts(parts, first, start, stop)
            if first < 0:
                return start, first, -1
        for begin in range(start, stop, length):
            end = min(begin + length, stop)
            values, magnitudes = x[begin:end], bits[begin:end]
            top = np.uint32(0)
            for i in range(magnitudes.size):
                top = max(top, np.uint32(magnitudes[i] & np.uint32(_MAGNITUDE)))
            if top >= np.uint32(INFINITY_BITS):
                return start, first, -1
            if top == 0:
                continue
            limit_bits[0] = top
            limit = limit_bits.view(np.float32)[0]
            totals[0] += np.float64(limit)
            # AdaComp's rule: an entry is sent if one more step like the last one would lift it to the largest magnitude of its
            # bin.
            _mark(values, fresh[begin - start : end - start] if len(parts) > 1 else values, limit, marks)
            # Few marks are set: eight zeros are skipped by one comparison.
            for word in range((values.size + 7) // 8):
                if words[word] == 0:
                    continue
                for i in range(8 * word, min(8 * word + 8, values.size)):
                    if marks[i]:
                        found[count] = np.uint32(begin + i) | np.uint32(magnitudes[i] & np.uint32(NEGATIVE))
                        totals[1] += np.float64(abs(values[i]))
                        count += 1
        start = stop
    return start, first, count


@kernel
def split(found: Words32, scale: np.float32, indices: Words32, values: Floats) -> None:
    """Overwrite `indices` and `values` with the indices and the decoded values of the entries that `gather` found."""
    for i in range(found.size):
        indices[i] = found[i] & np.uint32(_MAGNITUDE)
        values[i] = -scale if found[i] & np.uint32(NEGATIVE) else scale
