"""The root of the mean square of an array, the unit of thresholds."""

from __future__ import annotations

import math

from psnode.codecs.arrays import Floats
from psnode.codecs.kernels.parts import NO_PARTS, PartTable
from psnode.codecs.kernels.sums import l2_of_sum, uncut

NOT_FINITE = -1.0


def root_mean_square(x: Floats, parts: PartTable = NO_PARTS) -> float:
    """Of 1-D `x`, which is not empty; negative if a value is not finite. Summed in the fixed order of l2_norm.

    `parts` are added to their target, the memory of `x`, beforehand; negative if one is not finite.
    """
    norm = uncut(l2_of_sum(x, parts), x)
    return NOT_FINITE if norm < 0 else norm / math.sqrt(x.size)
