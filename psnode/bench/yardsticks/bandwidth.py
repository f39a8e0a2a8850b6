"""r: the rate at which one core reads memory, the yardstick of every codec's speed, measured in the same run."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from psnode.bench.yardsticks.rotation import Rotation
from psnode.bench.yardsticks.timing import rate
from psnode.codecs.arrays import Floats
from psnode.codecs.kernels.jit import kernel


@kernel
def fold(words: npt.NDArray[np.uint64]) -> np.uint64:
    """The exclusive or of all words: one pass that LLVM vectorises, and that cannot be left out."""
    result = np.uint64(0)
    for i in range(words.size):
        result ^= words[i]
    return result


def read_bandwidth(copies: Rotation, seconds: float = 0.1) -> dict[str, float]:
    """GB/s at which one core reads `copies`, one after the other: median and quartiles. Of a single copy: from the cache."""
    return rate(lambda: read_once(copies.take()), _words(copies.take()).nbytes, seconds)


def read_once(x: Floats) -> None:
    """Read all of `x`, flat, but for an odd value at its end."""
    fold(_words(x))


def _words(x: Floats) -> npt.NDArray[np.uint64]:
    return x[: x.size // 2 * 2].view(np.uint64)
