"""Ties of stochastic rounding, which 16 random bits leave open. Up to 128 more bits settle them, so that rounding is unbiased."""

from __future__ import annotations

import numpy as np

from psnode.codecs.arrays import Words
from psnode.codecs.kernels.jit import kernel
from psnode.codecs.rng import call

_TIES = 256  # added to a codec's number; the sum is the stream of these bits


@kernel
def chance(fraction: float, key: Words, stream: int, index: int) -> bool:
    """Return True with probability `fraction`, which is in [0, 1). It is compared with a uniform random number of 128 bits."""
    for word in call(key, stream + _TIES, index):
        fraction *= 2.0**32
        high = np.uint64(fraction)
        if word != high:
            return bool(word < high)
        fraction -= np.float64(high)
    return False
