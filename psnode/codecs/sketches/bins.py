"""Side information of sketchml: the bins with their values, the sizes of the sketch, and the indices of the coordinates sent.

    uint16 N, uint16 P        numbers of bins of negative and of other values, 1..255 each, at most 256 together
    uint16 groups G           1..128
    uint16 rows               rows of the sketch, 0..4
    if rows > 0: uint64 key[2], uint32 columns for every label; all columns add up to at most values plus labels
    float32 values            of the N + P bins, by rank
    section                   the indices of the coordinates sent, at least one: see psnode.codecs.selection.indices

Bins are ranked by ascending magnitude, first the negative bins, then the others. A label stands for a run of successive ranks.
Let a sign have M bins and g = min(G, M) labels. Its label k, in 0..g - 1, starts at rank floor(k M / g) among the ranks of that
sign. If the sketch has no rows, every rank has a label of its own.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np

from psnode.codecs.arrays import Bytes, Floats, Int64s, Words, Words32
from psnode.codecs.kernels import cluster_ids, minmaxsketch
from psnode.codecs.selection import indices
from psnode.codecs.stages import padded, read_section, write_section
from psnode.errors import PayloadError

MAX_ROWS = 4
MAX_GROUPS = 128
_HEAD, _KEY = 8, 16


def starts(negative: int, positive: int, groups: int, rows: int) -> Int64s:
    """Return the first rank of every label, followed by the total number of ranks."""
    if not rows:
        return np.arange(negative + positive + 1)
    runs = [(min(groups, bins), bins) for bins in (negative, positive)]
    below, above = (np.arange(count) * bins // count for count, bins in runs)
    return np.concatenate([below, negative + above, [negative + positive]])


class Bins(NamedTuple):
    """The side information of a payload.

    `values` are the bins' values by rank. `columns` are the numbers of columns by label, empty if there are no rows. `places`
    are the ascending indices of the coordinates sent.
    """

    negative: int
    groups: int
    rows: int
    key: Words
    columns: Int64s
    values: Floats
    places: Words32

    @property
    def first(self) -> Int64s:
        """The first rank of every label, as `starts` returns them."""
        return starts(self.negative, self.values.size - self.negative, self.groups, self.rows)

    @property
    def symbols(self) -> int:
        """The number of symbols: one label for every coordinate sent, and one symbol for every cell."""
        return self.places.size + self.rows * int(self.columns.sum())

    @property
    def alphabet(self) -> int:
        """The size of the alphabet: the larger of the number of labels and the largest number of ranks in a label."""
        first = self.first
        return max(first.size - 1, int(np.diff(first).max()))

    def cells(self, labels: Bytes, stream: int, row: int) -> Int64s:
        """Return the cell of every coordinate sent in row `row` of the sketch."""
        found = np.empty(labels.size, np.int64)
        cluster_ids.cells_of(labels, self.columns, self.key, stream + 256 * row, found)
        return found

    def ranks(self, codes: Bytes, stream: int) -> Bytes:
        """Return the rank of the bin of every coordinate sent, given all symbols.

        Raises PayloadError if a symbol is not valid.
        """
        labels, table = codes[: self.places.size], codes[self.places.size :].reshape(self.rows, -1 if self.rows else 0)
        numbers, ranks = np.zeros(labels.size, np.uint8), np.empty(labels.size, np.uint8)
        first = self.first
        if int(labels.max()) >= first.size - 1:
            raise PayloadError(f"sketchml: a label is not below {first.size - 1}")
        for row in range(self.rows):
            minmaxsketch.query(table[row], self.cells(labels, stream, row), numbers)
        if not minmaxsketch.join(labels, numbers, first, ranks):
            raise PayloadError("sketchml: a cell does not name a bin of its group")
        return ranks

    def write(self, size: int) -> Bytes:
        """Return the bytes of the side information for an array of `size` coordinates."""
        head = np.array([self.negative, self.values.size - self.negative, self.groups, self.rows], np.uint16)
        sketch: list[np.ndarray] = [self.key, self.columns.astype(np.uint32)] if self.rows else []
        places = np.empty(4 + padded(indices.max_nbytes(self.places.size, size)), np.uint8)
        end = write_section(places, indices.write(self.places, size, places[4:]))
        return np.concatenate([part.view(np.uint8) for part in (head, *sketch, self.values, places[:end])])

    @classmethod
    def read(cls, side: Bytes, size: int) -> tuple[Self, Bytes]:
        """Return the Bins at the start of `side`, for an array of `size` coordinates, and the remaining bytes.

        Raises PayloadError.
        """
        if side.size < _HEAD:
            raise PayloadError(f"sketchml: {side.size} bytes end inside the side information")
        negative, positive, groups, rows = side[:_HEAD].view(np.uint16).tolist()
        if not (negative and positive and negative + positive <= 256 and 1 <= groups <= MAX_GROUPS and rows <= MAX_ROWS):
            raise PayloadError(f"sketchml: {negative} + {positive} bins in {groups} groups and {rows} rows")
        labels = starts(negative, positive, groups, rows).size - 1 if rows else 0
        middle = _HEAD + (_KEY + 4 * labels if rows else 0)
        end = middle + 4 * (negative + positive)
        if side.size < end:
            raise PayloadError(f"sketchml: {side.size} bytes end inside the side information")
        key = side[_HEAD : _HEAD + _KEY].copy().view(np.uint64) if rows else np.zeros(2, np.uint64)
        columns = side[middle - 4 * labels : middle].copy().view(np.uint32).astype(np.int64)
        values = side[middle:end].copy().view(np.float32)
        if not np.isfinite(values).all() or (values[:negative] > 0).any() or (values[negative:] < 0).any():
            raise PayloadError("sketchml: the value of a bin is not finite or has the wrong sign")
        section, rest = read_section(side[end:])
        count = indices.count(section, size)
        if not count or (rows and (columns.min() < 1 or columns.sum() > count + labels)):
            raise PayloadError(f"sketchml: {columns.sum()} columns for {count} values")
        return cls(negative, groups, rows, key, columns, values, indices.read(section, size)), rest
