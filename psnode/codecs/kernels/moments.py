"""The root of the mean square of an array, the unit of thresholds."""

from __future__ import annotations

import math

import numpy as np

from psnode.codecs.arrays import Floats, readonly
from psnode.codecs.kernels.norms import l2_norm

NOT_FINITE = -1.0
_LARGEST = float(np.finfo(np.float32).max)
_DOWN = 2.0**-20
_SCRATCH = 1024


def root_mean_square(x: Floats) -> float:
    """Of 1-D `x`, which is not empty; negative if a value is not finite. Summed in the fixed order of l2_norm."""
    scratch = np.empty(_SCRATCH, np.float32)
    norm = l2_norm(x, scratch)
    if norm >= _LARGEST:  # cut off there
        norm = l2_norm(readonly(x * np.float32(_DOWN)), scratch) / _DOWN
    return NOT_FINITE if norm < 0 else norm / math.sqrt(x.size)
