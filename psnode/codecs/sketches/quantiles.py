"""Quantiles of values, negative and others apart: edges between bins with about equally many members, none across zero."""

from __future__ import annotations

import numpy as np

from psnode.codecs.arrays import Floats, Words
from psnode.codecs.sketches.codebook import sample

MEMBERS = 8  # of a bin, at least, or its mean costs more than its members gain


def edges_of(x: Floats, bins: int, key: Words, stream: int) -> tuple[Floats, int]:
    """The ascending edges of at most `bins` bins of the flat x, 0 among them, and how many bins lie below 0: one at least.

    The quantiles are those of `sample`: exact for at most 2^16 values, else a rank is off by more than .0076 of all with a
    probability below 10^-3 (Dvoretzky, Kiefer, Wolfowitz). Each sign has bins in proportion to its values, one at least; but
    half of them if it has 7/16 to 9/16 of the values, since labels and cells are packed by powers of two.
    """
    ordered = np.sort(sample(x, key, stream))
    negative = int(np.searchsorted(ordered, np.float32(0)))
    most = min(bins, max(2, x.size // MEMBERS))
    even = abs(negative / ordered.size - 0.5) <= 1 / 16
    share = most // 2 if even else min(max(round(most * negative / ordered.size), 1), most - 1)
    below, above = _cuts(ordered[:negative], share), _cuts(ordered[negative:], most - share)
    return np.concatenate([below, np.zeros(1, np.float32), above]), below.size + 1


def _cuts(part: Floats, bins: int) -> Floats:
    """The first values of all bins but the first; of bins with equal ones, of one."""
    cuts = np.unique(part[np.arange(1, bins) * part.size // bins]) if part.size else part
    return cuts[cuts > part[0]] if part.size else cuts
