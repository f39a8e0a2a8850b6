"""Rand-k: k random entries, whose indices sender and receiver derive from a key, so that no indices are sent.

All sets of k of the d coordinates are equally likely. Values are scaled by d / k, so that E decode = x and E||decode - x||^2 =
(d / k - 1) ||x||^2 exactly. In feedback loops values are not scaled, and the expected error is (1 - k / d) ||x||^2.

    side information   uint64 key[2], uint32 k; psnode.codecs.selection.subset derives the set from these
    values             x_i d / k by ascending i, rounded to float32 once and limited to its finite range

Source: Stich, Cordonnier, Jaggi, "Sparsified SGD with memory", NeurIPS 2018.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from psnode.codecs.arrays import Bytes, Shape, Words, Words32
from psnode.codecs.selection.selector import Selector, check_ratio, share
from psnode.codecs.selection.subset import draw
from psnode.codecs.selection.threshold_search import F, Search
from psnode.codecs.table import number_of
from psnode.codecs.traits import Traits
from psnode.errors import PayloadError

_SIDE = 20


@dataclass(frozen=True, repr=False)
class Randk(Selector):
    """randk:ratio=0.01,scaled=true.

    `ratio`: k / d, in (0, 1]; k is at least 1. `scaled=false`: send the entries unscaled. The codec is then biased and meant
    for feedback loops.

    With ratio 0.5, half of the entries are sent. They are doubled so that the expectation is x:

    >>> from psnode.codecs import get_codec
    >>> codec, x = get_codec("randk:ratio=0.5"), np.ones(8, np.float32)
    >>> sorted(codec.decode(codec.encode(x, np.random.default_rng(1))).tolist())
    [0.0, 0.0, 0.0, 0.0, 2.0, 2.0, 2.0, 2.0]
    """

    ratio: float = 0.01
    scaled: bool = True

    id = "randk"

    def __post_init__(self) -> None:
        """Raise CodecSpecError for a value out of bounds."""
        check_ratio(self)

    @property
    def traits(self) -> Traits:
        """The traits of the codec: sparse, and unbiased if entries are scaled."""
        return Traits(sparse=True, unbiased=self.scaled)

    def contractive(self) -> Randk:
        """Return this codec with scaled=false."""
        return dataclasses.replace(self, scaled=False) if self.scaled else self

    def _most(self, size: int) -> int:
        return share(self.ratio, size)

    def _max_parts(self, shape: Shape) -> tuple[int, int]:
        return _SIDE, self._most(math.prod(shape))

    def _select(self, search: Search[F], key: Words) -> F:
        count = self._most(search.size)
        entries = search.at(draw(count, search.size, key, number_of(self.id)))
        return entries.scaled(search.size / count) if self.scaled and count < search.size else entries

    def _write_indices(self, selected: Words32, key: Words, size: int, side: Bytes) -> int:
        side[:16].view(np.uint32)[:] = key.view(np.uint32)
        side[16:20].view(np.uint32)[0] = selected.size
        return _SIDE

    def _read_indices(self, side: Bytes, size: int) -> Words32:
        key = side[:16].view(np.uint32).copy().view(np.uint64)
        return draw(self._count(side, (size,)), size, key, number_of(self.id))

    def _count(self, side: Bytes, shape: Shape) -> int:
        if side.size != _SIDE:
            raise PayloadError(f"randk: {side.size} bytes of side information instead of {_SIDE}")
        count = int(side[16:20].view(np.uint32)[0])
        if count > math.prod(shape):
            raise PayloadError(f"randk: {count} entries of an array of shape {shape}")
        return count
