"""Top-k: the k entries of largest magnitude, unchanged.

The codec is biased, but it is a contraction and suits feedback loops: ||x - decode||^2 <= (1 - k / d) ||x||^2. For d
coordinates, the indices take about k (log2(d / k) + 1.5) bits, and the values 32 k bits. Zeros are never sent. Among equal
magnitudes, the entries with the lowest indices are sent.

    body   see psnode.codecs.selection.selector

Sources: Stich, Cordonnier, Jaggi, "Sparsified SGD with memory", NeurIPS 2018; the sampled threshold: Lin, Han, Mao, Wang,
Dally, "Deep Gradient Compression", ICLR 2018.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from psnode.codecs.arrays import Words
from psnode.codecs.selection.selector import Selector, check_ratio, share
from psnode.codecs.selection.threshold_search import F, Search
from psnode.codecs.table import number_of

_FEWEST = 0.8
_SMALL = 1 << 14


@dataclass(frozen=True, repr=False)
class Topk(Selector):
    """topk:ratio=0.01,sampled=false.

    `ratio`: k / d, in (0, 1]; k is at least 1. `sampled=true`: estimate a threshold from a random sample of 1 % of the
    coordinates (at most 16384). The array is divided into equal stretches, and one coordinate is drawn from each. If more than
    k values reach the threshold, the k largest are sent. If 0.8 k to k values reach it, all of these are sent. Otherwise the
    threshold is lowered. The array is nearly always read only once.

    >>> import numpy as np
    >>> from psnode.codecs import get_codec
    >>> codec, x = get_codec("topk:ratio=0.5"), np.array([1, -4, 2, 0.5], np.float32)
    >>> codec.decode(codec.encode(x, np.random.default_rng(1))).tolist()
    [0.0, -4.0, 2.0, 0.0]
    """

    ratio: float = 0.01
    sampled: bool = False

    id = "topk"

    def __post_init__(self) -> None:
        """Raise CodecSpecError for a value out of bounds."""
        check_ratio(self)

    def _most(self, size: int) -> int:
        return share(self.ratio, size)

    def _select(self, search: Search[F], key: Words) -> F:
        size = search.size
        keep, stream = self._most(size), number_of(self.id)
        if not self.sampled or size <= _SMALL:
            return search.largest(keep, key, stream)
        sampled = min(size // 100, 1 << 14)
        rank = sampled * keep / size
        rank += 2 * math.sqrt(rank) + 1
        while True:
            limit = search.limit(sampled, rank, key, stream)
            entries = search.at_least(limit, keep, int(size / sampled * (rank + 3 * math.sqrt(rank))))
            if len(entries.indices) >= _FEWEST * keep or limit == 1:
                return entries
            rank *= 2
