"""Threefry 4x32-13: four words from a counter and a key of four words each, by additions, rotations and exclusive ors.

This generator of random words computes one output of four words for every counter.

The generator is the cipher Threefish with words of 32 bits and 13 rounds, without the tweak. Round r = 0, 1, ... mixes two
pairs of words (x, y): words (0, 1) and (2, 3) if r is even, words (0, 3) and (2, 1) if r is odd. Mixing sets x <- x + y, then y
<- (y rotated left) ^ x. Before round 0 and after every fourth round, the key is added to the words. For each addition the words
of the key are shifted by one more position, and the number of the addition is added to the last word.

The functions are written as 32-bit instructions, because Numba widens the arithmetic of uint32, which would halve the lanes of a
vectorised loop.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. In that paper, 12 rounds pass the
tests of BigCrush. Its reference implementation, Random123, publishes known answers for 13 rounds.
"""

from __future__ import annotations

import numpy as np

from psnode.codecs.kernels.llvm.instructions import instructions
from psnode.codecs.kernels.llvm.operations import rotate_left

Four = tuple[np.uint32, np.uint32, np.uint32, np.uint32]

_ROUNDS = 13
_ROTATIONS = ((10, 26), (11, 21), (13, 27), (23, 5), (6, 20), (17, 11), (25, 10), (18, 20))
_PARITY = 0x1BD11BDA  # the fifth word of the key is the exclusive or of this and the other four


def _add_key(x: list[np.uint32], key: list[np.uint32], number: int) -> None:
    for i in range(4):
        x[i] = x[i] + key[(number + i) % 5]
    x[3] = x[3] + number


def _mix(x: list[np.uint32], r: int) -> None:
    pairs = ((0, 3), (2, 1)) if r % 2 else ((0, 1), (2, 3))
    for (i, j), distance in zip(pairs, _ROTATIONS[r % 8], strict=True):
        x[i] = x[i] + x[j]
        x[j] = rotate_left(x[j], distance) ^ x[i]


@instructions
def encrypt(counter: Four, key: Four) -> Four:
    """Return the four words of `counter`, encrypted with `key`. The function is for use inside kernels."""
    x, words = list(counter), list(key)
    words.append(words[0] ^ words[1] ^ words[2] ^ words[3] ^ _PARITY)
    _add_key(x, words, 0)
    for r in range(_ROUNDS):
        _mix(x, r)
        if r % 4 == 3:
            _add_key(x, words, r // 4 + 1)
    return x[0], x[1], x[2], x[3]
