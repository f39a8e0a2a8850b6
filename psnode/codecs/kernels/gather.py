"""The loops behind a scan for large values: 64 comparisons at a time to a mask, and one index for each of its few ones.

A strip of 4096 coordinates is read from memory once; its masks, and its copy where one is made, stay in the first-level cache.
"""

from __future__ import annotations

import numpy as np

from psnode.codecs.base import Floats, Words
from psnode.codecs.kernels.bitmasks import LANES, MAGNITUDE, Words32, lowest_one, mask_added, mask_at_least, mask_copied
from psnode.codecs.kernels.jit import inlined, kernel
from psnode.codecs.rng import BLOCK as CALLS
from psnode.codecs.rng import fill

STRIP = 4096


@inlined
def _collect(
    bits: Words32, start: int, stop: int, limit: np.uint32, masks: Words, out: Words32, found: Words32, count: int
) -> int:
    """Append what `masks` mark of full rows and what is at least `limit` of the last one; the new count."""
    rows = (stop - start) // LANES
    for row in range(rows):
        mask = masks[row]
        while mask:
            i = start + row * LANES + lowest_one(mask)
            out[count] = i
            found[count] = bits[i]
            count += 1
            mask &= mask - np.uint64(1)
    for i in range(start + rows * LANES, stop):
        if np.uint32(bits[i] & np.uint32(MAGNITUDE)) >= limit:
            out[count] = i
            found[count] = bits[i]
            count += 1
    return count


@kernel
def gather(x: Floats, start: int, limit: np.uint32, indices: Words32, found: Words32, count: int) -> tuple[int, int]:
    """Append the coordinates from `start` on whose magnitude has bits of at least `limit`, from place `count` on.

    Returns (stop, count): stop is x.size, or where the scan must go on because less than STRIP places were left.
    """
    masks = np.empty(STRIP // LANES, np.uint64)
    bits = x.view(np.uint32)
    while start < x.size and count + STRIP <= indices.size:
        stop = min(start + STRIP, x.size)
        for row in range((stop - start) // LANES):
            masks[row] = mask_at_least(bits, start + row * LANES, limit)
        count = _collect(bits, start, stop, limit, masks, indices, found, count)
        start = stop
    return start, count


@kernel
def gather_into(
    x: Floats, target: Floats, add: bool, start: int, limit: np.uint32, indices: Words32, found: Words32, count: int
) -> tuple[int, int]:
    """`gather` of `target` as it is written: a copy of `x`, or `x` added to it."""
    masks = np.empty(STRIP // LANES, np.uint64)
    bits = target.view(np.uint32)
    while start < x.size and count + STRIP <= indices.size:
        stop = min(start + STRIP, x.size)
        rows = (stop - start) // LANES
        if add:
            for row in range(rows):
                masks[row] = mask_added(x, target, start + row * LANES, limit)
        else:
            for row in range(rows):
                masks[row] = mask_copied(x, target, start + row * LANES, limit)
        for i in range(start + rows * LANES, stop):
            target[i] = target[i] + x[i] if add else x[i]
        count = _collect(bits, start, stop, limit, masks, indices, found, count)
        start = stop
    return start, count


@kernel
def sample(x: Floats, residual: Floats, key: Words, stream: int, found: Words32) -> None:
    """The bits of one coordinate at random of each of found.size equal stretches of x + residual; of x if that is empty."""
    words = np.empty(4 * CALLS, np.uint32)
    values = found.view(np.float32)
    stretch = x.size / found.size
    for i in range(found.size):
        j = i % (4 * CALLS)
        if j == 0:
            fill(words, key, stream, i // 4)
        place = min(np.int64((i + words[j] * 2.0**-32) * stretch), np.int64(x.size - 1))
        values[i] = x[place] + residual[place] if residual.size else x[place]
