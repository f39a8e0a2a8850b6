"""Decoded values of cluster ids: one mean per cluster or, if every cluster has an array of hashed buckets, one mean per bucket.

    uint32 K - 1, uint32 B, the number of buckets of all clusters
    if B > 0: uint64 key[2], uint32 sizes[K], which add up to B
    float32 means: B of them, or K if B = 0

Coordinate i of cluster k belongs to bucket floor(w sizes[k] / 2^32) of cluster k, where w is the random 32-bit word of i in a
stream under the key: see psnode.codecs.kernels.cluster_ids.cells_of.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np

from psnode.codecs.arrays import Bytes, Floats, Int64s, Words
from psnode.codecs.kernels import cluster_ids
from psnode.codecs.kernels.cluster_ids import Ids
from psnode.errors import PayloadError

HEAD = 8
_KEY = 16
_ONE = np.float32(1)


def nbytes(k: int, buckets: int) -> int:
    """Return the number of bytes of the side information of k clusters."""
    return HEAD + (_KEY + 4 * k + 4 * buckets if buckets else 4 * k)


def head(side: Bytes, size: int) -> tuple[int, int]:
    """Return the numbers K and B that side information for `size` coordinates states.

    Raises PayloadError if they are not valid or `side` is too short.
    """
    last, buckets = side[:HEAD].view(np.uint32).tolist() if side.size >= HEAD else (0, 0)
    if not 1 <= last <= 255 or buckets > max(size, last + 1) or (buckets and buckets <= last):
        raise PayloadError(f"lss: {last + 1} clusters and {buckets} buckets for {size} coordinates")
    if side.size < nbytes(last + 1, buckets):
        raise PayloadError(f"lss: {side.size} bytes end inside the side information")
    return last + 1, buckets


class Means(NamedTuple):
    """Means of K clusters, or of their buckets, as float32. Without buckets `sizes` is empty and `key` is zero."""

    clusters: int
    values: Floats
    sizes: Int64s
    key: Words

    @classmethod
    def read(cls, side: Bytes, size: int) -> Self:
        """Return the means in `side`, which must hold nothing else, for an array of `size` coordinates. Raises PayloadError."""
        k, buckets = head(side, size)
        if side.size != nbytes(k, buckets):
            raise PayloadError(f"lss: {side.size} bytes of side information instead of {nbytes(k, buckets)}")
        key, sizes, start = np.zeros(2, np.uint64), np.empty(0, np.int64), HEAD
        if buckets:
            key = side[HEAD : HEAD + _KEY].copy().view(np.uint64)
            start += _KEY + 4 * k
            sizes = side[HEAD + _KEY : start].copy().view(np.uint32).astype(np.int64)
            if sizes.min() < 1 or sizes.sum() != buckets:
                raise PayloadError(f"lss: {k} clusters of at least one bucket do not have {buckets} in all")
        values = side[start:].copy().view(np.float32)
        if not np.isfinite(values).all():
            raise PayloadError("lss: a mean is not finite")
        return cls(k, values, sizes, key)

    def write(self) -> Bytes:
        """Return the side information from which `read` returns these means."""
        parts: list[np.ndarray] = [np.array([self.clusters - 1, self.sizes.sum()], np.uint32)]
        if self.sizes.size:
            parts += [self.key, self.sizes.astype(np.uint32)]
        return np.concatenate([part.view(np.uint8) for part in (*parts, self.values)])

    def of(self, codes: Bytes, stream: int, weight: np.float32 = _ONE) -> tuple[Ids, Floats]:
        """Return, for every coordinate, the index of its mean, and the array of all means times `weight`."""
        with np.errstate(over="ignore"):
            values = self.values * weight
        if not self.sizes.size:
            return codes, values
        cells = np.empty(codes.size, np.int64)
        cluster_ids.cells_of(codes, self.sizes, self.key, stream, cells)
        return cells, values
