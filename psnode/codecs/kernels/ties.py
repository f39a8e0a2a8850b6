"""Ties of stochastic rounding that 16 random bits leave open: settled by up to 128 more, so that it is exactly unbiased."""

from __future__ import annotations

import numpy as np

from psnode.codecs.arrays import Words
from psnode.codecs.kernels.jit import kernel
from psnode.codecs.rng import call

_TIES = 256  # added to a stage's number: the stream of these bits


@kernel
def chance(fraction: float, key: Words, stream: int, index: int) -> bool:
    """True with probability `fraction`, which lies in [0, 1): a uniform number of 128 bits is below it."""
    for word in call(key, stream + _TIES, index):
        fraction *= 2.0**32
        high = np.uint64(fraction)
        if word != high:
            return bool(word < high)
        fraction -= np.float64(high)
    return False
