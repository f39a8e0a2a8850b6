"""L2 norms of decoded values, and bounds on them that the scales of a payload give."""

from __future__ import annotations

import math

import numpy as np

from psnode.codecs.arrays import Floats, readonly
from psnode.codecs.kernels.norms import NOT_FINITE, l2_norm
from psnode.errors import PayloadError

_SCRATCH = 1024


def norm_of(values: Floats, owner: str) -> float:
    """The L2 norm of 1-D `values`, or the largest float32 if that is less. PayloadError names `owner` where one is not finite."""
    found = l2_norm(readonly(values), np.empty(_SCRATCH, np.float32))
    if found == NOT_FINITE:
        raise PayloadError(f"{owner}: a value is not finite")
    return found


def norm_of_buckets(largest: Floats, bucket: int, size: int) -> float:
    """The largest norm of `size` values whose magnitudes are at most `largest`, which has an entry for every `bucket` of them."""
    last = size - bucket * (largest.size - 1)
    whole = l2_norm(readonly(np.ascontiguousarray(largest[:-1], np.float32)), np.empty(_SCRATCH, np.float32))
    return math.hypot(math.sqrt(bucket) * whole, math.sqrt(last) * float(largest[-1]))
