"""The root mean square of an array, which is the unit of thresholds."""

from __future__ import annotations

import math

import numpy as np

from psnode.codecs.arrays import Floats, readonly
from psnode.codecs.kernels.norms import l2_norm
from psnode.codecs.kernels.parts import NO_PARTS, PartTable
from psnode.codecs.kernels.sums import l2_of_sum, uncut

NOT_FINITE = -1.0
_LARGEST = float(np.finfo(np.float32).max)
_SCRATCH = 576  # float32


def root_mean_square(x: Floats, parts: PartTable = NO_PARTS) -> float:
    """Return the root mean square of 1-D `x`, which is not empty, summed in the fixed order of l2_norm.

    `parts` are first added to their target, which is the memory of `x`. The result is negative if a value or a part is not
    finite.
    """
    if len(parts) > 1:
        norm = uncut(l2_of_sum(x, parts), x)
    else:  # the result is the same, but fewer kernels must be compiled
        norm = l2_norm(readonly(x), np.empty(_SCRATCH, np.float32))
        norm = norm if norm < _LARGEST else uncut(norm, x)
    return NOT_FINITE if norm < 0 else norm / math.sqrt(x.size)
