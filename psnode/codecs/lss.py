"""Clusters of values: a coordinate is sent as the id of its cluster and decodes to a mean.

Without buckets this is the mean of the cluster. With buckets, every cluster has an array of buckets, and the mean is that of
one bucket: coordinate i belongs to bucket h(i) of its cluster's array, where the hash function h depends on the key. Clusters
are intervals of values between edges. A search on a sample finds edges with nearly the least squared error. If `rate` is given,
the squared error is nearly the least at which the ids have an entropy of at most `rate` bits, which is the rate of a chain
`lss+ans`. The means are always those of the array being encoded, even if the edges were fitted to another array. Therefore

    ||x - decode||^2 = ||x||^2 - sum of n_b mean_b^2 over all buckets (or clusters) b with n_b members

which is never more than ||x||^2. For Gaussian values, clusters with ids of 1, 2 and 3 bits leave an error of .363, .118 and
.0345 times ||x||^2.

    body   the means as side information, see psnode.codecs.sketches.means, then the ids in as many bits as K - 1 has, see
           psnode.codecs.kernels.planes

Source: Ge, Zhang, Fu, Lai, Deng, Li, "CASQ: Accelerate distributed deep learning with sketch-based gradient quantization",
CLUSTER 2021. The paper instead finds clusters by k-means on a sample split by sign. Its bucket arrays have sizes in proportion
to entropy times |centre|, as with `allocation=weighted`.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from psnode.codecs.abilities import Fitted
from psnode.codecs.arrays import Float64s, Int64s
from psnode.codecs.base import NOTHING, Bytes, Codes, Floats, RandomSource, Shape, Sink, Source, Words, readonly
from psnode.codecs.bounds import check_choice, check_integer, check_real
from psnode.codecs.kernels import cluster_ids
from psnode.codecs.kernels.finite import all_finite, raise_nonfinite
from psnode.codecs.kernels.packed import pack, unpack
from psnode.codecs.kernels.planes import packed_nbytes
from psnode.codecs.kernels.root_mean_square import root_mean_square
from psnode.codecs.sinks import Moved
from psnode.codecs.sketches import budget, means
from psnode.codecs.sketches.codebook import edges_of
from psnode.codecs.sketches.means import Means
from psnode.codecs.stages import Quantiser, Symbols
from psnode.codecs.table import number_of
from psnode.codecs.traits import Traits
from psnode.errors import CodecSpecError

_SAMPLING = 256  # added to the stream of the buckets; the sum is the stream of the sample
_NO_SIZES = np.empty(0, np.int64)
_NO_KEY = np.zeros(2, np.uint64)


@dataclass(frozen=True, repr=False)
class Lss(Fitted, Quantiser):
    """lss:bits=2,buckets=0,allocation=optimal,rate=,refit=1,codebook=

    `bits`: the bits of an id, 1..8, for at most 2^bits clusters. `buckets`: the number of buckets per coordinate, in [0, 1]; if
    0, only cluster means are sent. `allocation`: the rule that divides the buckets among the clusters, optimal or weighted.
    `rate`: the largest entropy of an id in bits; if empty, there is no limit. `refit`: the number of training steps from one
    fit of a segment's edges to the next, 1..10^6. `codebook`: the edges that `fit` found, in units of the root mean square, as
    float32 in hexadecimal; if empty, edges are determined for each array.

    If an array has only four distinct values, they are the means of four clusters, and decoding is exact:

    >>> from psnode.codecs import get_codec
    >>> codec, x = get_codec("lss:bits=2"), np.array([1, -4, 2, 0.5, -4, 1], np.float32)
    >>> codec.decode(codec.encode(x, np.random.default_rng(1))).tolist()
    [1.0, -4.0, 2.0, 0.5, -4.0, 1.0]
    """

    bits: int = 2
    buckets: float = 0.0
    allocation: str = "optimal"
    rate: float | None = None
    refit: int = 1
    codebook: str | None = None

    id = "lss"

    def __post_init__(self) -> None:
        """Raise CodecSpecError for a value out of bounds."""
        check_integer(self, "bits", 1, 8)
        check_real(self, "buckets", 0, 1)
        check_choice(self, "allocation", ("optimal", "weighted"))
        if self.rate is not None:
            check_real(self, "rate", 0.01, 8)
        check_integer(self, "refit", 1, 10**6)
        if self.codebook is not None:
            self._relative_edges()

    @property
    def traits(self) -> Traits:
        """The traits of the codec: `one_scale`, because all tensors of a segment share its clusters, and `refit`."""
        return Traits(one_scale=True, refit=self.refit)

    def fit(self, x: Floats, rng: RandomSource) -> Lss:
        """Return this codec with a codebook fitted to `x`, or the codec itself if all values of x are 0."""
        flat = readonly(np.ascontiguousarray(x).reshape(-1))
        key = np.asarray(rng.integers(2**64, size=2, dtype=np.uint64))
        scale = root_mean_square(flat) if flat.size else 0.0
        if scale < 0:
            raise_nonfinite(x)
        if not scale:
            return self
        edges = edges_of(flat, 2**self.bits, self.rate, key, self._stream + _SAMPLING)
        relative = np.unique((edges / scale).astype(np.float32))
        return dataclasses.replace(self, codebook=relative.astype("<f4").tobytes().hex())

    @property
    def _stream(self) -> int:
        return number_of(self.id)

    def _relative_edges(self) -> Floats:
        try:
            edges = np.frombuffer(bytes.fromhex(self.codebook or ""), "<f4").astype(np.float32)
        except ValueError:
            edges = np.empty(0, np.float32)
        if not 1 <= edges.size < 2**self.bits or not np.isfinite(edges).all() or (np.diff(edges) < 0).any():
            raise CodecSpecError(
                f"lss: codebook={self.codebook!r} must be 1 to {2**self.bits - 1} ascending float32 values in hexadecimal: "
                "leave it to fit"
            )
        return edges

    def _edges(self, x: Floats, key: Words) -> Floats:
        """Return the edges between the clusters of the flat `x`, followed by infinity. Raises NonFiniteGradientError."""
        if self.codebook is None:
            if not all_finite(x):
                raise_nonfinite(x)
            edges = edges_of(x, 2**self.bits, self.rate, key, self._stream + _SAMPLING)
        else:
            scale = root_mean_square(x)
            if scale < 0:
                raise_nonfinite(x)
            largest = float(np.finfo(np.float32).max)
            edges = np.clip(self._relative_edges() * scale, -largest, largest).astype(np.float32)
        return np.append(edges, np.float32(np.inf))

    def _buckets(self, size: int) -> int:
        return max(2**self.bits, round(self.buckets * size)) if self.buckets else 0

    def _max_symbols(self, size: int) -> tuple[int, int, int]:
        return means.nbytes(2**self.bits, self._buckets(size)), size, 2**self.bits

    def _max_body(self, shape: Shape) -> int:
        size = math.prod(shape)
        return self._max_symbols(size)[0] + packed_nbytes(size, self.bits)

    def _fuses(self, source: Source, sink: Sink) -> bool:
        return sink is NOTHING or isinstance(sink, Moved)

    def _clustered(self, x: Floats, key: Words) -> tuple[Means, Bytes]:
        """Return the means of the clusters or of their buckets, and the cluster id of every coordinate."""
        edges, table = self._edges(x, key), np.empty(cluster_ids.CELLS, np.uint8)
        k, codes = edges.size, np.empty(x.size, np.uint8)
        cluster_ids.lookup(readonly(edges[:-1]), table)
        cluster_ids.assign(x, readonly(edges), readonly(table), codes)
        sums, counts = np.empty(k, np.float64), np.empty(k, np.int64)
        cluster_ids.totals(x, readonly(codes), sums, counts)
        centres = sums / np.maximum(counts, 1)
        if not self.buckets:
            return Means(k, centres.astype(np.float32), _NO_SIZES, _NO_KEY), codes
        sizes = self._sizes(x, codes, counts, centres)
        found = Means(k, np.zeros(sizes.sum(), np.float32), sizes, key)
        cells, _ = found.of(codes, self._stream)
        sums, counts = np.empty(sizes.sum(), np.float64), np.empty(sizes.sum(), np.int64)
        cluster_ids.bucket_totals(x, cells, sums, counts)
        return found._replace(values=(sums / np.maximum(counts, 1)).astype(np.float32)), codes

    def _sizes(self, x: Floats, codes: Bytes, counts: Int64s, centres: Float64s) -> Int64s:
        total = max(counts.size, round(self.buckets * x.size))
        if self.allocation == "weighted":
            return budget.weighted(counts, centres, total)
        squares = np.empty(counts.size, np.float64)
        cluster_ids.squares(x, codes, squares)
        return budget.optimal(counts, np.maximum(squares / np.maximum(counts, 1) - centres * centres, 0), total)

    def _encode(self, source: Source, key: Words, body: Bytes, sink: Sink) -> int:
        x = source.array().reshape(-1)
        found, codes = self._clustered(x, key)
        if isinstance(sink, Moved):
            cluster_ids.add(*found.of(codes, self._stream, np.float32(sink.weight)), sink.target.reshape(-1))
        return self._write(found, codes, body)

    def _write(self, found: Means, codes: Bytes, body: Bytes) -> int:
        side = found.write()
        body[: side.size] = side
        return side.size + pack(codes, found.clusters, body[side.size :])

    def _read(self, body: Bytes, size: int) -> tuple[Means, Bytes]:
        start = means.nbytes(*means.head(body, size))
        found, codes = Means.read(body[:start], size), np.empty(size, np.uint8)
        unpack(body[start:], codes, found.clusters, self.id)
        return found, codes

    def _decode(self, body: Bytes, out: Floats) -> None:
        found, codes = self._read(body, out.size)
        cluster_ids.write(*found.of(codes, self._stream), out.reshape(-1))

    def _decode_add(self, body: Bytes, out: Floats, weight: np.float32) -> None:
        found, codes = self._read(body, out.size)
        cluster_ids.add(*found.of(codes, self._stream, weight), out.reshape(-1))

    def _symbols(self, x: Floats, key: Words) -> Symbols:
        found, codes = self._clustered(x.reshape(-1), key)
        return Symbols(found.write(), codes, found.clusters)

    def _read_side(self, side: Bytes, size: int) -> tuple[int, int]:
        return size, Means.read(side, size).clusters

    def _from_symbols(self, side: Bytes, codes: Codes, out: Floats) -> None:
        cluster_ids.write(*Means.read(side, out.size).of(np.asarray(codes, np.uint8), self._stream), out)
