"""Stochastic rounding in fixed point: floor(a / 2^16 + U), with U uniform in [0, 1), has the expectation a / 2^16.

With 16 random bits, the rounded number is the integer part of floor(a) + random, where both terms are in units of 2^-16. The
sum ends in 16 ones once in 2^16 times. Then the fraction of a is compared with up to 128 more random bits. The expectation is
therefore exact.
"""

from __future__ import annotations

import numpy as np

from psnode.codecs.arrays import Words
from psnode.codecs.kernels.jit import inlined
from psnode.codecs.kernels.ties import chance

UNIT = 2**16
ONES = UNIT - 1


@inlined
def fixed_point(a: np.float32, zero: np.uint32, random: np.uint32) -> np.uint32:
    """Return floor(a) + zero + random, modulo 2^32, for a value a in units of 2^-16. `zero` must be a multiple of 2^16."""
    return np.uint32(np.uint32(np.int32(np.floor(a))) + zero + random)


@inlined
def is_tie(t: np.uint32) -> bool:
    """Return True if `t`, a result of `fixed_point`, does not determine the integer to which a value is rounded."""
    return bool(np.uint32(t & np.uint32(ONES)) == np.uint32(ONES))


@inlined
def goes_up(a: float, key: Words, stream: int, index: int) -> bool:
    """Return True if the tie of coordinate number `index` is rounded up, by further random bits of a stream."""
    return chance(a - np.floor(a), key, stream, index)
