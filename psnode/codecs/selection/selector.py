"""Base class of the sparsifiers: codecs that send some coordinates of an array, unchanged or scaled.

The body is a section (uint32 length, bytes, zeros to a multiple of 4) with the indices (see selection.indices), followed by the
values. The values are float32 or, in a chain, the output of the quantiser.
"""

from __future__ import annotations

import math
from abc import abstractmethod

import numpy as np

from psnode.codecs.abilities import Sparse
from psnode.codecs.arrays import Words32
from psnode.codecs.base import Bytes, Floats, Indices, Shape, Sink, Source, Words
from psnode.codecs.bounds import check_real
from psnode.codecs.kernels.entries import add_at, put_at
from psnode.codecs.payload import MAX_COORDINATES
from psnode.codecs.selection import indices
from psnode.codecs.selection.largest import Entries, Scan
from psnode.codecs.selection.scans import scanned
from psnode.codecs.selection.searching_reducer import Searching
from psnode.codecs.selection.threshold_search import F, Search
from psnode.codecs.sinks import Moved
from psnode.codecs.sources import Values
from psnode.codecs.stages import Reducer, write_section
from psnode.codecs.traits import Traits


class Selector(Sparse, Searching, Reducer):
    """A reducer that sends selected entries.

    Subclasses implement `_select`, and `_most`, an upper bound of the number of entries.
    """

    @property
    def traits(self) -> Traits:
        """The traits of a sparsifier: `sparse` only."""
        return Traits(sparse=True)

    @abstractmethod
    def _most(self, size: int) -> int:
        """Return the largest number of entries sent for `size` > 0 coordinates."""

    @abstractmethod
    def _select(self, search: Search[F], key: Words) -> F:
        """Return the entries to send, which it finds with `search`. Raises NonFiniteGradientError."""

    def _write_indices(self, selected: Words32, key: Words, size: int, side: Bytes) -> int:
        return indices.write(selected, size, side)

    def _read_indices(self, side: Bytes, size: int) -> Words32:
        return indices.read(side, size)

    def _max_parts(self, shape: Shape) -> tuple[int, int]:
        size = math.prod(shape)
        most = self._most(size)
        return indices.max_nbytes(most, size), most

    def select(self, source: Source, key: Words, side: Bytes) -> tuple[int, Entries]:
        """Write the indices of the entries to send to `side`. Return their length in bytes and the entries.

        Raises NonFiniteGradientError.
        """
        entries = self._select(Scan(scanned(source)), key)
        return self._write_indices(entries.indices, key, source.size, side), entries

    def _reduce(self, x: Floats, key: Words, side: Bytes) -> tuple[int, Floats]:
        used, entries = self.select(Values(x), key, side)
        return used, entries.values

    def _encode(self, source: Source, key: Words, body: Bytes, sink: Sink) -> int:
        used, entries = self.select(source, key, body[4 : 4 + self._max_parts(source.shape)[0]])
        start = write_section(body, used)
        end = start + 4 * entries.values.size
        body[start:end].view(np.float32)[:] = entries.values
        if isinstance(sink, Moved):
            add_at(sink.target.reshape(-1), entries.indices, entries.values, np.float32(sink.weight))
        return end

    def _count(self, side: Bytes, shape: Shape) -> int:
        """Return the number of values that belong to `side`.

        The indices are checked later, by _expand, before it writes anything.
        """
        return indices.count(side, math.prod(shape))

    def _expand(self, side: Bytes, values: Floats, out: Floats) -> None:
        put_at(out.reshape(-1), self._read_indices(side, out.size), values)

    def _expand_add(self, side: Bytes, values: Floats, out: Floats, weight: np.float32) -> None:
        add_at(out.reshape(-1), self._read_indices(side, out.size), values, weight)

    def _entries(self, body: Bytes, shape: Shape) -> Entries:
        return self._at(*self.parted(body, shape), shape)

    def _at(self, side: Bytes, values: Floats, shape: Shape) -> Entries:
        return Entries(self._read_indices(side, math.prod(shape)), values)

    def _support_of(self, side: Bytes, shape: Shape) -> Indices:
        return self._read_indices(side, math.prod(shape)).astype(np.int64)


def share(ratio: float, size: int) -> int:
    """Return `ratio` times `size`, rounded to the nearest integer and at least 1."""
    return max(1, round(ratio * size))


def check_ratio(owner: object) -> None:
    """Raise CodecSpecError unless the attribute `ratio` of `owner` is in (0, 1]."""
    check_real(owner, "ratio", 1 / MAX_COORDINATES, 1)
