"""SketchML: values in bins of equal counts, with the bin numbers in a sketch that never increases a magnitude.

The indices of the non-zero coordinates are sent as a set. Their values are sorted into quantile bins, separately by sign so
that no sign changes. A value decodes to the mean of a bin. The bins of each sign are divided into groups. For every coordinate
sent, the group of its bin is sent as a label.

The number of the bin within its group is counted from the bin nearest to zero. This number is stored in a MinMaxSketch, in one
hashed cell of each row. A cell keeps the minimum of the numbers stored in it, and the decoder takes the maximum over a
coordinate's cells. Coordinates may share cells. A value therefore decodes to the mean of its own bin or of a bin of the same
group nearer to zero, never of a bin farther from zero.

For n non-zero values among d coordinates, the set of indices costs less than 1.03 log2 binomial(d, n) bits. With r rows of c
cells per value, and bins of equal counts, each value costs another H(group) + r c log2(bins per group) bits, where H(group) is
the entropy of the label. With rows=0 there is no sketch, and for every value the number of its bin is sent.

    body      the side information, see psnode.codecs.sketches.bins; then the symbols, in planes of as many bits as the largest
              symbol of the alphabet has
    symbols   the label of every value, then the rows of the sketch, each with the cells of all labels

Source: Jiang, Fu, Yang, Cui, "SketchML: Accelerating distributed machine learning with data sketches", SIGMOD 2018.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from psnode.codecs.arrays import Int64s
from psnode.codecs.base import Bytes, Codes, Floats, Shape, Sink, Source, Words, readonly
from psnode.codecs.bounds import check_integer, check_real
from psnode.codecs.kernels import cluster_ids, minmaxsketch
from psnode.codecs.kernels.entries import add_at, put_at
from psnode.codecs.kernels.finite import all_finite, raise_nonfinite
from psnode.codecs.kernels.packed import bits_for, pack, unpack
from psnode.codecs.kernels.planes import packed_nbytes
from psnode.codecs.payload import MAX_COORDINATES
from psnode.codecs.selection import indices
from psnode.codecs.sketches.bins import MAX_GROUPS, MAX_ROWS, Bins, starts
from psnode.codecs.sketches.quantiles import edges_of
from psnode.codecs.stages import Quantiser, Symbols, padded
from psnode.codecs.table import number_of
from psnode.errors import PayloadError

_SAMPLING = 256 * MAX_ROWS  # added to the stage's number; the sum is the stream of the sample, after the streams of the rows


@dataclass(frozen=True, repr=False)
class SketchMl(Quantiser):
    """sketchml:bins=256,groups=8,rows=2,columns=0.3

    `bins`: the largest number of bins of both signs together, 2..256. There is at most one bin for every 8 values, but there
    are at least two bins. `groups`: the number of groups of each sign, 1..128. `rows`: the number of rows of the sketch, 0..4.
    `columns`: the number of cells in a row per value, in (0, 1].

    If the values of each bin are equal, decoding is exact:

    >>> from psnode.codecs import get_codec
    >>> codec, x = get_codec("sketchml:rows=0"), np.repeat(np.array([3, -2], np.float32), 8)
    >>> bool((codec.decode(codec.encode(x, np.random.default_rng(1))) == x).all())
    True
    """

    bins: int = 256
    groups: int = 8
    rows: int = 2
    columns: float = 0.3

    id = "sketchml"

    def __post_init__(self) -> None:
        """Raise CodecSpecError for a value out of bounds."""
        check_integer(self, "bins", 2, 256)
        check_integer(self, "groups", 1, MAX_GROUPS)
        check_integer(self, "rows", 0, MAX_ROWS)
        check_real(self, "columns", 1 / MAX_COORDINATES, 1)

    @property
    def _stream(self) -> int:
        return number_of(self.id)

    def _max_symbols(self, size: int) -> tuple[int, int, int]:
        labels = min(2 * self.groups, self.bins) if self.rows else 0
        side = 8 + (16 + 4 * labels if self.rows else 0) + 4 * self.bins + 4 + padded(indices.max_nbytes(size, size))
        alphabet = max(labels, -(-self.bins // self.groups)) if self.rows else self.bins
        return side, size + self.rows * (math.ceil(self.columns * size) + labels), alphabet

    def _max_body(self, shape: Shape) -> int:
        side, codes, alphabet = self._max_symbols(math.prod(shape))
        return side + packed_nbytes(codes, bits_for(alphabet))

    def _binned(self, x: Floats, key: Words) -> tuple[Bins, Bytes]:
        """Return the bins of the flat array `x`, and all symbols: labels and sketch. Raises NonFiniteGradientError."""
        if not all_finite(x):
            raise_nonfinite(x)
        places = np.flatnonzero(x).astype(np.uint32)
        if not places.size:  # send one zero, because there must be a symbol
            places = np.zeros(1, np.uint32)
        values = readonly(x[places])
        edges, negative = edges_of(values, self.bins, key, self._stream + _SAMPLING)
        numbers, means = _binned(values, edges)
        order = np.concatenate([np.arange(negative)[::-1], np.arange(negative, means.size)])
        first = starts(negative, means.size - negative, self.groups, self.rows)
        labels = np.repeat(np.arange(first.size - 1), np.diff(first)).astype(np.uint8)
        codes, within = np.empty(values.size, np.uint8), np.empty(values.size, np.uint8)
        minmaxsketch.split(numbers, order.astype(np.uint8), labels, first, codes, within)
        found = Bins(negative, self.groups, self.rows, key, self._columns(codes, first.size - 1), means[order], places)
        return found, self._with_cells(found, codes, within)

    def _columns(self, labels: Bytes, count: int) -> Int64s:
        members = np.bincount(labels, minlength=count if self.rows else 0)
        return np.maximum(1, (self.columns * members).astype(np.int64)) if self.rows else np.empty(0, np.int64)

    def _with_cells(self, bins: Bins, labels: Bytes, numbers: Bytes) -> Bytes:
        codes = np.empty(bins.symbols, np.uint8)
        codes[: labels.size] = labels
        table = codes[labels.size :].reshape(self.rows, -1 if self.rows else 0)
        for row in range(self.rows):
            minmaxsketch.insert(numbers, bins.cells(labels, self._stream, row), table[row])
        return codes

    def _encode(self, source: Source, key: Words, body: Bytes, sink: Sink) -> int:
        x = source.array()
        bins, codes = self._binned(x.reshape(-1), key)
        side = bins.write(x.size)
        body[: side.size] = side
        return side.size + pack(codes, bins.alphabet, body[side.size :])

    def _read(self, body: Bytes, size: int) -> tuple[Bins, Floats]:
        """Return the bins, and the decoded value of every coordinate that was sent. Raises PayloadError."""
        bins, packed = Bins.read(body, size)
        codes = np.empty(bins.symbols, np.uint8)
        unpack(packed, codes, bins.alphabet, self.id)
        return bins, bins.values[bins.ranks(codes, self._stream)]

    def _decode(self, body: Bytes, out: Floats) -> None:
        bins, values = self._read(body, out.size)
        put_at(out.reshape(-1), bins.places, values)

    def _decode_add(self, body: Bytes, out: Floats, weight: np.float32) -> None:
        bins, values = self._read(body, out.size)
        add_at(out.reshape(-1), bins.places, values, weight)

    def _symbols(self, x: Floats, key: Words) -> Symbols:
        bins, codes = self._binned(x.reshape(-1), key)
        return Symbols(bins.write(x.size), codes, bins.alphabet)

    def _read_side(self, side: Bytes, size: int) -> tuple[int, int]:
        bins, rest = Bins.read(side, size)
        if rest.size:
            raise PayloadError(f"sketchml: {rest.size} bytes follow the side information")
        return bins.symbols, bins.alphabet

    def _from_symbols(self, side: Bytes, codes: Codes, out: Floats) -> None:
        bins, _ = Bins.read(side, out.size)
        put_at(out, bins.places, bins.values[bins.ranks(np.asarray(codes, np.uint8), self._stream)])


def _binned(values: Floats, edges: Floats) -> tuple[Bytes, Floats]:
    """Return the bin number of every value, and the mean of every bin (0 for an empty bin)."""
    table, numbers = np.empty(cluster_ids.CELLS, np.uint8), np.empty(values.size, np.uint8)
    cluster_ids.lookup(readonly(edges), table)
    cluster_ids.assign(values, readonly(np.append(edges, np.float32(np.inf))), readonly(table), numbers)
    sums, counts = np.empty(edges.size + 1, np.float64), np.empty(edges.size + 1, np.int64)
    cluster_ids.totals(values, readonly(numbers), sums, counts)
    return numbers, (sums / np.maximum(counts, 1)).astype(np.float32)
