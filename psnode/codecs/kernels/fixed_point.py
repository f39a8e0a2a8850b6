"""Stochastic rounding in fixed point: floor(a / 2^16 + U), U uniform in [0, 1), which has the expectation a / 2^16.

With 16 random bits, the integer part of floor(a) + random, both in units of 2^-16, is the rounded number. Where the sum ends in
16 ones, once in 2^16, the fraction of a decides, against up to 128 more random bits: the expectation is exact.
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
    """floor(a) + zero + random, modulo 2^32. `zero`: a multiple of 2^16."""
    return np.uint32(np.uint32(np.int32(np.floor(a))) + zero + random)


@inlined
def is_tie(t: np.uint32) -> bool:
    """True if a result of `fixed_point` leaves open to which integer it is rounded."""
    return bool(np.uint32(t & np.uint32(ONES)) == np.uint32(ONES))


@inlined
def goes_up(a: float, key: Words, stream: int, index: int) -> bool:
    """The decision of a tie, for the coordinate `index` of a stream."""
    return chance(a - np.floor(a), key, stream, index)
