"""Threshold: the entries whose magnitude is at least tau, unchanged.

The codec is biased. In a feedback loop with a fixed tau, every entry of the residual stays below tau.

    body   see psnode.codecs.selection.selector

Source: Dutta et al., "On the discrepancy between the theoretical analysis and practical implementations of compressed
communication for distributed deep learning", AAAI 2020 (hard threshold); Sahu et al., "Rethinking gradient sparsification
as total error minimization", NeurIPS 2021.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from psnode.codecs.arrays import Words
from psnode.codecs.bounds import check_real
from psnode.codecs.selection.selector import Selector
from psnode.codecs.selection.threshold_search import F, Search
from psnode.codecs.table import number_of
from psnode.codecs.traits import Traits

_RMS = 3.0
_ROOM = 16
_LARGEST = float(np.finfo(np.float32).max)
_LEAST = 1e-45  # rounds to the smallest positive float32


@dataclass(frozen=True, repr=False)
class Threshold(Selector):
    """threshold:tau=.

    `tau`: a magnitude > 0. The scale of gradients differs between models, layers and steps, so that no fixed default would suit
    all of them. If `tau` is empty, it is three times the array's RMS. Values above this are outliers at any scale: 0.3 % of the
    entries of a Gaussian array, and never more than a ninth of all entries. If no entry reaches this value, only the largest
    entry is sent, so that feedback loops cannot stall.

    >>> from psnode.codecs import get_codec
    >>> codec, x = get_codec("threshold:tau=1"), np.array([2, 0.5, -1.5, 0], np.float32)
    >>> codec.decode(codec.encode(x, np.random.default_rng(1))).tolist()
    [2.0, 0.0, -1.5, 0.0]
    """

    tau: float | None = None

    id = "threshold"

    def __post_init__(self) -> None:
        """Raise CodecSpecError for a value out of bounds."""
        if self.tau is not None:
            check_real(self, "tau", _LEAST, _LARGEST)

    @property
    def traits(self) -> Traits:
        """The traits of the codec: sparse, and adaptive with a fixed `tau`, because any number of entries may reach it."""
        return Traits(sparse=True, adaptive=self.tau is not None)

    def _most(self, size: int) -> int:
        return size if self.tau is not None else max(1, size // int(_RMS**2))

    def _select(self, search: Search[F], key: Words) -> F:
        size = search.size
        most, room = self._most(size), size // _ROOM
        if self.tau is not None:
            return search.at_least(_bits_from(self.tau), most, room)
        limit = max(1, _bits_from(_RMS * search.root_mean_square()))
        entries = search.at_least(limit, most, room)
        return entries if len(entries.indices) else search.largest(1, key, number_of(self.id))


def _bits_from(tau: float) -> int:
    """Return the bits of the smallest float32 that is at least tau, or of the largest float32 if tau is larger than that."""
    rounded = np.float32(min(tau, _LARGEST))
    if float(rounded) < tau < _LARGEST:
        rounded = np.nextafter(rounded, np.float32(np.inf))
    return int(rounded.view(np.uint32))
