"""Random sets of k of d indices as a function of a key. All sets are equally likely, and sender and receiver draw the same set.

Random words are mapped to 0..d-1 without bias: by a multiplication, in which the few products that would favour an index are
rejected. Each index marks a bit, until k bits are marked. All sequences of k distinct indices are equally likely, and therefore
all sets are. If k > d / 2, the complement is drawn instead. A draw takes fewer than 1.4 words per index on average, and d bits
of memory.

Source of the mapping: Lemire, "Fast random integer generation in an interval", ACM TOMACS 29(1), 2019.
"""

from __future__ import annotations

import numpy as np

from psnode.codecs.arrays import Words, Words32
from psnode.codecs.kernels.jit import kernel
from psnode.codecs.rng import BLOCK, fill
from psnode.codecs.selection.bitmap import scan


def draw(count: int, size: int, key: Words, stream: int) -> Words32:
    """Return `count` distinct random indices below `size` <= 2^28, ascending, as uint32.

    The random words are those of calls 0, 1, ... of `stream`.
    """
    marked = np.zeros(-(-size // 64), np.uint64)
    others = 2 * count > size
    _mark(size - count if others else count, size, key, stream, marked)
    if others:
        np.invert(marked, out=marked)
        if size % 64:
            marked[-1] &= np.uint64((1 << size % 64) - 1)
    indices = np.empty(count, np.uint32)
    scan(marked, indices)
    return indices


@kernel
def _mark(count: int, size: int, key: Words, stream: int, marked: Words) -> None:
    """Set `count` random bits among the first `size` bits of `marked`, which must hold zeros."""
    words = np.empty(4 * BLOCK, np.uint32)
    low = np.uint64(0xFFFFFFFF)
    biased = np.uint64((1 << 32) % size)
    first = 0
    while count:
        fill(words, key, stream, first)
        first += BLOCK
        for j in range(words.size):
            product = np.uint64(words[j]) * np.uint64(size)
            index = product >> np.uint64(32)
            bit = np.uint64(1) << (index & np.uint64(63))
            word = marked[index >> np.uint64(6)]
            fresh = (word & bit) == 0 and (product & low) >= biased
            marked[index >> np.uint64(6)] = word | (bit if fresh else np.uint64(0))
            count -= int(fresh)
            if count == 0:
                break
