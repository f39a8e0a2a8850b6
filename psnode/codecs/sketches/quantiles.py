"""Quantile bins of values: bins with about equal numbers of members, separately for negative and for other values."""

from __future__ import annotations

import numpy as np

from psnode.codecs.arrays import Floats, Words
from psnode.codecs.sketches.codebook import sample

MEMBERS = 8  # the smallest average number of members of a bin; with fewer, its mean costs more bits than it saves


def edges_of(x: Floats, bins: int, key: Words, stream: int) -> tuple[Floats, int]:
    """Return the ascending edges of at most `bins` bins of the flat x, and the number of bins below 0. One edge is 0.

    The quantiles are computed from `sample`, and are exact for at most 2^16 values. For more values, the rank of a quantile is
    off by more than .0076 of their number with a probability of about 10^-3 at most (Dvoretzky, Kiefer, Wolfowitz). Each sign
    has at least one bin. The numbers of bins of both signs are in proportion to their numbers of values. If 7/16 to 9/16 of the
    values are negative, the numbers of bins are equal, because labels and cells are packed by powers of two.
    """
    ordered = np.sort(sample(x, key, stream))
    negative = int(np.searchsorted(ordered, np.float32(0)))
    most = min(bins, max(2, x.size // MEMBERS))
    even = abs(negative / ordered.size - 0.5) <= 1 / 16
    share = most // 2 if even else min(max(round(most * negative / ordered.size), 1), most - 1)
    below, above = _cuts(ordered[:negative], share), _cuts(ordered[negative:], most - share)
    return np.concatenate([below, np.zeros(1, np.float32), above]), below.size + 1


def _cuts(part: Floats, bins: int) -> Floats:
    """Return the first value of every bin but the first, without duplicates."""
    cuts = np.unique(part[np.arange(1, bins) * part.size // bins]) if part.size else part
    return cuts[cuts > part[0]] if part.size else cuts
