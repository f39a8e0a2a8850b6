"""GradDrop sends the entries that reach a threshold. One threshold, estimated from a sample, holds for the whole segment.

The sample consists of 0.1 % of the coordinates, but of at least 4096 (or of all, if there are fewer) and at most 65536. The
array is divided into equal stretches, and one random coordinate of each is taken. The threshold is the magnitude that a share
`ratio` of the sample reaches. The number of entries that reach the threshold is random, and near ratio d for d coordinates. At
most the 2 ratio d largest entries are sent. Among equal magnitudes, the entries with the lowest indices are preferred. Zeros
are never sent. At least one entry is sent unless all are zero. The codec is biased.

    body   see psnode.codecs.selection.selector

Source: Aji, Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from psnode.codecs.arrays import Words
from psnode.codecs.selection.selector import Selector, check_ratio, share
from psnode.codecs.selection.threshold_search import F, Search
from psnode.codecs.table import number_of


@dataclass(frozen=True, repr=False)
class Graddrop(Selector):
    """graddrop:ratio=0.01.

    `ratio`: the expected share of entries sent, in (0, 1]. In the paper it is 1 %.

    A short array is sampled completely, so that the share is exact:

    >>> import numpy as np
    >>> from psnode.codecs import get_codec
    >>> codec, x = get_codec("graddrop:ratio=0.5"), np.array([1, -4, 2, 0.5], np.float32)
    >>> codec.decode(codec.encode(x, np.random.default_rng(1))).tolist()
    [0.0, -4.0, 2.0, 0.0]
    """

    ratio: float = 0.01

    id = "graddrop"

    def __post_init__(self) -> None:
        """Raise CodecSpecError for a value out of bounds."""
        check_ratio(self)

    def _most(self, size: int) -> int:
        return min(2 * share(self.ratio, size), size)

    def _select(self, search: Search[F], key: Words) -> F:
        size = search.size
        sampled = min(max(size // 1000, 4096), 1 << 16, size)
        rank = share(self.ratio, sampled)
        limit = search.limit(sampled, rank, key, number_of(self.id))
        return search.at_least(limit, self._most(size), int(size / sampled * (rank + 3 * math.sqrt(rank))))
