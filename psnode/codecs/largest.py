"""The k largest magnitudes of a vector, in one pass over memory.

A random sample of the vector gives a threshold that about k coordinates reach. The scan keeps what reaches it; whenever
its buffer is full, what does not belong to the k largest so far is dropped and the threshold rises. So the result does
not depend on the sample, ties and zeros cost nothing, and the workspace is bounded. Of equal magnitudes the lowest
indices win. Zeros are never selected: there are fewer than k entries where fewer are not zero.

Infinities and NaNs have the largest magnitudes of all: where there are any, one is among the selected.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from psnode.codecs.base import Floats, Words
from psnode.codecs.bitmasks import LANES, MAGNITUDE, Words32, lowest_one, mask_at_least
from psnode.codecs.finite import INFINITY_BITS, raise_nonfinite
from psnode.codecs.jit import kernel
from psnode.codecs.ranking import keep_largest, kth_largest, peak
from psnode.codecs.rng import BLOCK as CALLS
from psnode.codecs.rng import fill

STRIP = 4096
_NO_TARGET = np.empty(0, np.uint32)


class Entries(NamedTuple):
    """Selected coordinates: ascending flat indices (uint32) and their values (float32)."""

    indices: Words32
    values: Floats


@kernel
def gather(
    bits: Words32, start: int, limit: np.uint32, target: Words32, indices: Words32, found: Words32, count: int
) -> tuple[int, int]:
    """Append the coordinates from `start` on whose magnitude is at least `limit` to `indices` and `found`, from `count` on.

    Returns (stop, count): stop is bits.size, or where the scan must go on because less than STRIP places were left.
    What was scanned is copied to `target` unless that is empty.
    """
    masks = np.empty(STRIP // LANES, np.uint64)
    while start < bits.size and count + STRIP <= indices.size:
        stop = min(start + STRIP, bits.size)
        if target.size:
            target[start:stop] = bits[start:stop]
        rows = (stop - start) // LANES
        for row in range(rows):
            masks[row] = mask_at_least(bits, start + row * LANES, limit)
        for row in range(rows):
            mask = masks[row]
            while mask:
                i = start + row * LANES + lowest_one(mask)
                indices[count] = i
                found[count] = bits[i]
                count += 1
                mask &= mask - np.uint64(1)
        for i in range(start + rows * LANES, stop):
            if np.uint32(bits[i] & np.uint32(MAGNITUDE)) >= limit:
                indices[count] = i
                found[count] = bits[i]
                count += 1
        start = stop
    return start, count


@kernel
def sample(bits: Words32, key: Words, stream: int, found: Words32) -> None:
    """One coordinate at random of each of found.size equal stretches of `bits`."""
    words = np.empty(4 * CALLS, np.uint32)
    stretch = bits.size / found.size
    for i in range(found.size):
        j = i % (4 * CALLS)
        if j == 0:
            fill(words, key, stream, i // 4)
        place = np.int64((i + words[j] * 2.0**-32) * stretch)
        found[i] = bits[min(place, np.int64(bits.size - 1))]


def _longer(array: Words32, most: int) -> Words32:
    longer = np.empty(min(2 * array.size, most), np.uint32)
    longer[: array.size] = array
    return longer


def bits_of(x: Floats) -> Words32:
    """The bits of `x` as a vector."""
    return x.reshape(-1).view(np.uint32)


def sampled_limit(bits: Words32, size: int, rank: float, key: Words, stream: int) -> int:
    """The magnitude, at least 1, of the rank-th largest of `size` sampled coordinates; 1 if the rank exceeds the sample."""
    if rank >= size:
        return 1
    found = np.empty(size, np.uint32)
    sample(bits, key, stream, found)
    return max(1, int(kth_largest(found, max(1, math.ceil(rank)))[0]))


def at_least(x: Floats, limit: int, most: int, room: int, target: Floats | None = None) -> Entries:
    """The coordinates of `x` whose magnitude has bits of at least `limit` >= 1; of more than `most` the largest.

    `room`: how many are expected; a multiple of it is allocated when there are more. `target`, if given, receives a copy
    of x. Raises NonFiniteGradientError.
    """
    bits = bits_of(x)
    copy = _NO_TARGET if target is None else bits_of(target)
    full = min(most + max(most // 2, STRIP), x.size) + STRIP
    room = min(room + STRIP, full)
    indices, found = np.empty(room, np.uint32), np.empty(room, np.uint32)
    stop = count = 0
    while True:
        stop, count = gather(bits, stop, np.uint32(limit), copy, indices, found, count)
        if stop == x.size:
            break
        if indices.size < full:
            indices, found = _longer(indices, full), _longer(found, full)
        else:
            limit = int(keep_largest(indices, found, count, most)) + 1
            count = most
    if count > most:
        keep_largest(indices, found, count, most)
        count = most
    if int(peak(found[:count])) >= INFINITY_BITS:
        raise_nonfinite(x)
    return Entries(indices[:count], found[:count].view(np.float32))


def largest(x: Floats, keep: int, key: Words, stream: int, target: Floats | None = None) -> Entries:
    """The `keep` >= 1 largest of `x`, exactly; all that are not zero if there are fewer."""
    limit = 1
    room = x.size
    if x.size > 4 * STRIP:
        size = min(x.size // 64, 1 << 14)
        expected = size * keep / x.size
        rank = expected + 4 * math.sqrt(expected) + 3  # fewer than one scan in 10^4 finds too few
        room = int(x.size / size * (rank + 4 * math.sqrt(rank)))
        limit = sampled_limit(bits_of(x), size, rank, key, stream)
    entries = at_least(x, limit, keep, room, target)
    if entries.indices.size < keep and limit > 1:
        return at_least(x, 1, keep, room)
    return entries
