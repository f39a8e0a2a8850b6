"""The loops of a scan for large values. Every 64 comparisons give a mask, and each of its few ones gives an index.

A strip of 4096 coordinates is read from memory once. Its masks, and the values computed from it, stay in the first-level cache.
The loops `gather...` append indices, plus `offset` if they take one, to indices[count:], and the bits of the values to
found[count:]. They return (stop, count). `stop` is the end of the input, or the coordinate at which the scan must continue
because fewer than STRIP entries of the arrays were free.
"""

from __future__ import annotations

import numpy as np

from psnode.codecs.arrays import Floats, Words, Words32
from psnode.codecs.kernels.bitmasks import LANES, MAGNITUDE, lowest_one, mask_added, mask_at_least, mask_copied
from psnode.codecs.kernels.cache_hints import AHEAD, fetch_row, fetch_row_to_write, wide
from psnode.codecs.kernels.finite import INFINITY_BITS, ROW
from psnode.codecs.kernels.jit import inlined, kernel
from psnode.codecs.kernels.llvm.instructions import viewed
from psnode.codecs.rng import BLOCK as CALLS
from psnode.codecs.rng import fill

STRIP = 4096


@inlined
def _collect(
    bits: Words32, start: int, stop: int, limit: np.uint32, masks: Words, out: Words32, found: Words32, count: int, offset: int
) -> int:
    """Append the values that `masks` mark in full rows, and the values of the last row that reach `limit`.

    Return the new count.
    """
    rows = (stop - start) // LANES
    for row in range(rows):
        mask = masks[row]
        while mask:
            i = start + row * LANES + lowest_one(mask)
            out[count] = i + offset
            found[count] = bits[i]
            count += 1
            mask &= mask - np.uint64(1)
    for i in range(start + rows * LANES, stop):
        if np.uint32(bits[i] & np.uint32(MAGNITUDE)) >= limit:
            out[count] = i + offset
            found[count] = bits[i]
            count += 1
    return count


@kernel
def gather(x: Floats, start: int, limit: np.uint32, indices: Words32, found: Words32, count: int, offset: int) -> tuple[int, int]:
    """List the coordinates from `start` on whose magnitudes, given by their bits, are at least `limit`."""
    wide()
    masks = np.empty(STRIP // LANES, np.uint64)
    bits = viewed(x, np.uint32)
    while start < x.size and count + STRIP <= indices.size:
        stop = min(start + STRIP, x.size)
        rows = (stop - start) // LANES
        for first in range(0, rows, ROW // LANES):
            fetch_row(x, start + first * LANES + AHEAD)
            for row in range(first, min(first + ROW // LANES, rows)):
                masks[row] = mask_at_least(bits, start + row * LANES, limit)
        count = _collect(bits, start, stop, limit, masks, indices, found, count, offset)
        start = stop
    return start, count


@kernel
def gather_copied(
    x: Floats, target: Floats, start: int, limit: np.uint32, indices: Words32, found: Words32, count: int
) -> tuple[int, int]:
    """Copy `x` to `target`, and list coordinates as `gather` does in the same sweep."""
    wide()
    masks = np.empty(STRIP // LANES, np.uint64)
    bits = viewed(target, np.uint32)
    while start < x.size and count + STRIP <= indices.size:
        stop = min(start + STRIP, x.size)
        rows = (stop - start) // LANES
        for first in range(0, rows, ROW // LANES):
            fetch_row(x, start + first * LANES + AHEAD)
            fetch_row_to_write(target, start + first * LANES + AHEAD)
            for row in range(first, min(first + ROW // LANES, rows)):
                masks[row] = mask_copied(x, target, start + row * LANES, limit)
        for i in range(start + rows * LANES, stop):
            target[i] = x[i]
        count = _collect(bits, start, stop, limit, masks, indices, found, count, 0)
        start = stop
    return start, count


@kernel
def gather_added(
    x: Floats, target: Floats, start: int, limit: np.uint32, indices: Words32, found: Words32, count: int, offset: int
) -> tuple[int, int]:
    """Add `x` to `target`, and list coordinates of `target` as `gather` does in the same sweep.

    If a strip of `x` is not finite, the count is -1.
    """
    wide()
    masks = np.empty(STRIP // LANES, np.uint64)
    bits, magnitudes = viewed(target, np.uint32), viewed(x, np.uint32)
    while start < x.size and count + STRIP <= indices.size:
        stop = min(start + STRIP, x.size)
        rows = (stop - start) // LANES
        top = np.uint32(0)
        for first in range(start, stop, ROW):
            fetch_row(x, first + AHEAD)
            part = magnitudes[first : min(first + ROW, stop)]
            for i in range(part.size):
                top = max(top, np.uint32(part[i] & np.uint32(MAGNITUDE)))
        if top >= np.uint32(INFINITY_BITS):
            return start, -1
        for first in range(0, rows, ROW // LANES):
            fetch_row_to_write(target, start + first * LANES + AHEAD)
            for row in range(first, min(first + ROW // LANES, rows)):
                masks[row] = mask_added(x, target, start + row * LANES, limit)
        for i in range(start + rows * LANES, stop):
            target[i] = target[i] + x[i]
        count = _collect(bits, start, stop, limit, masks, indices, found, count, offset)
        start = stop
    return start, count


@kernel
def gather_difference(
    x: Floats, y: Floats, start: int, limit: np.uint32, indices: Words32, found: Words32, count: int
) -> tuple[int, int]:
    """List coordinates of x - y as `gather` does. The difference is computed one strip at a time."""
    masks = np.empty(STRIP // LANES, np.uint64)
    difference = np.empty(STRIP, np.float32)
    bits = viewed(difference, np.uint32)
    while start < x.size and count + STRIP <= indices.size:
        stop = min(start + STRIP, x.size)
        here, there = x[start:stop], y[start:stop]
        for i in range(here.size):
            difference[i] = here[i] - there[i]
        for row in range((stop - start) // LANES):
            masks[row] = mask_at_least(bits, row * LANES, limit)
        count = _collect(bits, 0, stop - start, limit, masks, indices, found, count, start)
        start = stop
    return start, count


@kernel
def places(size: int, key: Words, stream: int, found: Words32) -> None:
    """Fill `found` with random indices below `size`, ascending.

    The coordinates are divided into found.size equal stretches, and one index is drawn from each.
    """
    words = np.empty(4 * CALLS, np.uint32)
    stretch = size / found.size
    for i in range(found.size):
        j = i % (4 * CALLS)
        if j == 0:
            fill(words, key, stream, i // 4)
        found[i] = min(np.int64((i + words[j] * 2.0**-32) * stretch), np.int64(size - 1))


@kernel
def take(x: Floats, places: Words32) -> Floats:
    """Return x[places]. Unlike NumPy, this does not convert the indices to a wider type."""
    values = np.empty(places.size, np.float32)
    for i in range(places.size):
        values[i] = x[places[i]]
    return values
