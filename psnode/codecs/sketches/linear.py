"""Base class of the linear sketches: r rows of cells; in each row every coordinate is added, with a random sign, to one cell.

    cell[j][c] = sum of s_j(i) x_i over all i with h_j(i) = c

The hash h_j(i) and the sign s_j(i) of coordinate i in row j depend only on the key, the row and the coordinate. Sketches under
one key can therefore be added: the sum of the sketches is the sketch of the sum of the arrays. The estimate s_j(i)
cell[j][h_j(i)] has mean x_i. Its variance comes from the other coordinates in the same cell and is about (||x||^2 - x_i^2) /
columns.

    body   uint64 key[2], uint32 rows, uint32 columns, float32 cells row by row

Cells are summed in float64. They are limited so that x minus a decoded value stays within float32's range, and then rounded
once.
"""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np

from psnode.codecs.abilities import Linear
from psnode.codecs.base import Bytes, Codec, Floats, Measured, Payload, RandomSource, Shape, Sink, Source, Words, readonly
from psnode.codecs.bounds import check_integer, check_real
from psnode.codecs.kernels import hashed
from psnode.codecs.kernels.dots import inner_products
from psnode.codecs.kernels.finite import all_finite, raise_nonfinite
from psnode.codecs.kernels.norms import NOT_FINITE, max_norm, norm_of
from psnode.codecs.payload import MAX_COORDINATES, body_of, header_nbytes
from psnode.codecs.table import number_of
from psnode.codecs.traits import Traits
from psnode.errors import PayloadError

MAX_ROWS = 16
_HEAD = 24
_LARGEST = float(np.finfo(np.float32).max)


class _Table(NamedTuple):
    """A sketch: the two words of its key, the number of rows, and the cells of all rows."""

    key: Words
    rows: int
    cells: Floats


def cells_of(data: Bytes, dimensions: int) -> Floats:
    """Return a view of the cells in `data`, the bytes of a payload of an array with `dimensions` dimensions.

    The cells of payloads under one key can be added.
    """
    return data[header_nbytes(dimensions) + _HEAD :].view(np.float32)


@dataclass(frozen=True, repr=False)
class LinearSketch(Linear, Codec):
    """A linear sketch with the parameters rows=5,ratio=0.1,damped=false.

    `rows`: the number of rows, 1..16. `ratio`: the number of cells of all rows together, divided by the number of coordinates,
    in (0, 1]. `damped=true`: multiply the cells by c = <x, Q> / <Q, Q>, where Q is the decoded array. The damped form is a
    contraction, but biased.
    """

    rows: int = 5
    ratio: float = 0.1
    damped: bool = False

    def __post_init__(self) -> None:
        """Raise CodecSpecError for a value out of bounds."""
        check_integer(self, "rows", 1, MAX_ROWS)
        check_real(self, "ratio", 1 / MAX_COORDINATES, 1)

    @property
    @abstractmethod
    def median(self) -> bool:
        """True if the estimate of a coordinate is the median of its cells, False if it is the mean."""

    @property
    def traits(self) -> Traits:
        """The traits of the codec: linear, and unbiased unless damped. It decodes linearly with means but not with medians."""
        return Traits(unbiased=not self.damped, linear=True, decodes_linearly=not self.median)

    def contractive(self) -> Self:
        """Return this codec with damped=true."""
        return dataclasses.replace(self, damped=True)

    def merge(self, payloads: Sequence[Payload]) -> Payload:
        """Return the sketch of the sum. Raises PayloadError unless all payloads agree in shape, rows, columns and key."""
        if not payloads:
            raise PayloadError(f"{self.id}: nothing to merge")
        first = payloads[0]
        start = header_nbytes(len(first.shape)) + _HEAD
        if any(payload.data[:start].tobytes() != first.data[:start].tobytes() for payload in payloads):
            raise PayloadError(f"{self.id}: sketches of different shapes, rows or keys cannot be merged")
        merged = first.data.copy()
        if first.size:
            total = np.zeros((merged.size - start) // 4, np.float64)
            for payload in payloads:
                total += self._read(body_of(self, payload)).cells
            merged[start:].view(np.float32)[:] = np.clip(total, -_LARGEST, _LARGEST)
        return Payload(merged)

    def merges_with_own(self, payload: Payload, rng: RandomSource) -> bool:
        """Return True if `payload` has the key that `rng` draws and this codec's rows and columns, or encodes an empty array."""
        key = np.asarray(rng.integers(2**64, size=2, dtype=np.uint64))
        own = [*key.view(np.uint32).tolist(), self.rows, self._columns(payload.shape)]
        return not payload.size or body_of(self, payload)[:_HEAD].view(np.uint32).tolist() == own

    def _columns(self, shape: Shape) -> int:
        return max(1, round(self.ratio * math.prod(shape) / self.rows))

    def _max_body(self, shape: Shape) -> int:
        return _HEAD + 4 * self.rows * self._columns(shape)

    def _encode(self, source: Source, key: Words, body: Bytes, sink: Sink) -> int:
        x = source.array()
        flat, used = x.reshape(-1), self._max_body(x.shape)
        top = max_norm(flat)
        if top == NOT_FINITE:
            raise_nonfinite(x)
        limit = _LARGEST - top
        columns = self._columns(x.shape)
        sums = np.zeros(self.rows * columns, np.float64)
        hashed.insert(flat, self.rows, key, number_of(self.id), sums)
        cells = body[_HEAD:used].view(np.float32)
        cells[:] = np.clip(sums, -limit, limit)
        if self.damped:
            decoded = np.empty_like(flat)
            self._estimate(_Table(key, self.rows, readonly(cells)), decoded, np.float32(1), False)
            xy, yy = inner_products(flat, decoded)
            cells[:] = np.clip(sums * (xy / yy if yy else 0.0), -limit, limit)
        body[:16].view(np.uint32)[:] = key.view(np.uint32)
        body[16:_HEAD].view(np.uint32)[:] = self.rows, columns
        return used

    def _decode(self, body: Bytes, out: Floats) -> None:
        self._estimate(self._read(body), out.reshape(-1), np.float32(1), False)

    def _decode_add(self, body: Bytes, out: Floats, weight: np.float32) -> None:
        self._estimate(self._read(body), out.reshape(-1), weight, True)

    def _measure(self, body: Bytes, shape: Shape, room: Floats | None) -> Measured:
        """Return the norm of the cells. They are not decoded, because payloads are merged before they are decoded."""
        norm = norm_of(self._read(body).cells, self.id)
        return Measured(norm, lambda out, weight: self._decode_add(body, out, weight))

    def _estimate(self, table: _Table, out: Floats, weight: np.float32, add: bool) -> None:
        hashed.estimate(table.cells, table.rows, table.key, number_of(self.id), self.median, out, weight, add)

    def _read(self, body: Bytes) -> _Table:
        if body.size < _HEAD:
            raise PayloadError(f"{self.id}: a body of {body.size} bytes ends inside its head")
        rows, columns = body[16:_HEAD].view(np.uint32).tolist()
        if not 1 <= rows <= MAX_ROWS or not columns or body.size != _HEAD + 4 * rows * columns:
            raise PayloadError(f"{self.id}: {rows} rows of {columns} cells do not make a body of {body.size} bytes")
        cells = body[_HEAD:].view(np.float32)
        if not all_finite(cells):
            raise PayloadError(f"{self.id}: a cell is not finite")
        return _Table(body[:16].copy().view(np.uint64), rows, cells)
