"""Read bandwidth r of one core, to which the speeds of codecs are compared. It is measured in the same run."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from psnode.bench.yardsticks.rotation import Rotation
from psnode.bench.yardsticks.timing import rate
from psnode.codecs.arrays import Floats
from psnode.codecs.kernels.jit import kernel


@kernel
def fold(words: npt.NDArray[np.uint64]) -> np.uint64:
    """Return the exclusive or of all words, in one pass that LLVM vectorises and cannot optimise away."""
    result = np.uint64(0)
    for i in range(words.size):
        result ^= words[i]
    return result


def read_bandwidth(copies: Rotation, seconds: float = 0.1) -> dict[str, float]:
    """Return the median and quartiles of the GB/s at which one core reads `copies` in turn.

    With a single copy this is the bandwidth of the cache.
    """
    return rate(lambda: read_once(copies.take()), _words(copies.take()).nbytes, seconds)


def read_once(x: Floats) -> None:
    """Read all values of the flat array `x` once; if their number is odd, the last value is left out."""
    fold(_words(x))


def _words(x: Floats) -> npt.NDArray[np.uint64]:
    return x[: x.size // 2 * 2].view(np.uint64)
