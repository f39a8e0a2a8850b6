"""Singular values and rank-one terms of a matrix on a device, computed by torch as psnode.codecs.lowrank does on the host.

The whole spectrum is computed from the float64 Gram matrix of the matrix's short side. A few of the largest terms are computed
from a random subspace. psnode.codecs.lowrank.spectrum and .randomised explain why this is accurate enough. Only the singular
values (8 bytes for each row of the short side) and, with `cover`, the energy of the matrix are copied to the host. The random
numbers are drawn on the host and copied to the device.

The values are not scaled first, because the cube of a float32 is within the range of float64. The matrix is converted to
float64 block by block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from psnode.codecs.arrays import Float64s, Int64s, Words
from psnode.codecs.lowrank.randomised import OVERSAMPLING, normals
from psnode.codecs.lowrank.spectrum import NOISE

_BLOCK = 1 << 22  # values per block of which a float64 copy is made


class DeviceCore(NamedTuple):
    """A float32 matrix of `shape` without its zero rows and columns. It also holds the indices of the rows and columns kept.

    The indices of the rows or of the columns are None if all of them are kept.
    """

    values: torch.Tensor
    rows: torch.Tensor | None
    columns: torch.Tensor | None
    shape: tuple[int, int]

    @property
    def tall(self) -> bool:
        """True if there are more rows than columns, so that the columns are the short side."""
        return self.values.shape[0] > self.values.shape[1]

    @property
    def short_in_front(self) -> torch.Tensor:
        """The values as a matrix whose rows are the short side: a view, transposed if the values are tall."""
        return self.values.T if self.tall else self.values

    def factors(self, short: torch.Tensor, long: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the factors (left, right), of shapes (k, m) and (k, n), of k terms of the whole matrix.

        They are made of the terms' factors `short` and `long`, on the short and long side of the core.
        """
        left, right = (long, short) if self.tall else (short, long)
        return _spread(left, self.rows, self.shape[0]), _spread(right, self.columns, self.shape[1])


def trim(matrix: torch.Tensor) -> DeviceCore:
    """Return `matrix` (m, n) without its zero rows and columns. It is copied only if it has some. Waits for the device."""
    m, n = matrix.shape
    rows, columns = (_unless_all(matrix.any(dim=side).nonzero().reshape(-1), size) for side, size in ((1, m), (0, n)))
    values = matrix if rows is None else matrix.index_select(0, rows)
    return DeviceCore(values if columns is None else values.index_select(1, columns), rows, columns, (m, n))


def _unless_all(places: torch.Tensor, size: int) -> torch.Tensor | None:
    return None if places.numel() == size else places


@dataclass(frozen=True, slots=True)
class DeviceSpectrum:
    """Terms of a matrix on a device."""

    core: DeviceCore
    values: Float64s
    """(r,), on the host, positive: the singular values, descending, followed by the length of a random term, if there is one."""
    vectors: torch.Tensor
    """(r, short side of the core), float64: orthonormal vectors of the short side."""
    products: torch.Tensor | None = None
    """(r, long side of the core): the vectors of the other side, whose lengths are the values. None: computed on demand."""

    def terms(self, chosen: Int64s) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the factors (left, right) of the k terms with the indices `chosen`: float64, of shapes (k, m) and (k, n)."""
        indices = _up(chosen, self.vectors.device)
        short = self.vectors[indices]
        if self.products is not None:
            return self.core.factors(short, self.products[indices])
        short = _signed(short)
        return self.core.factors(short, _times(short, self.core.short_in_front))


def spectrum(core: DeviceCore) -> DeviceSpectrum:
    """Return all terms whose singular values exceed the rounding noise of the largest singular value."""
    matrix = core.short_in_front
    gram = torch.zeros(len(matrix), len(matrix), dtype=torch.float64, device=matrix.device)
    for block in _blocks(matrix.T):
        gram.addmm_(block.T, block)
    if not gram.numel():
        return DeviceSpectrum(core, np.zeros(0), gram, gram)
    squares, basis = torch.linalg.eigh(gram)
    values = _roots(squares.cpu().numpy())
    return DeviceSpectrum(core, values, basis.T.flip(0)[: values.size])


def sketch(core: DeviceCore, count: int, key: Words, *, cover: bool = False) -> DeviceSpectrum:
    """Return approximations of at least the `count` largest terms.

    With `cover`, a random term for the rest of the matrix follows.

    The random subspace equals that of psnode.codecs.lowrank.randomised.sketch with the same `key`, up to rounding.
    """
    matrix = core.short_in_front
    short, width = len(matrix), count + OVERSAMPLING
    if short <= width:
        return spectrum(core)
    drawn = normals(key, short * (width + 1)).reshape(width + 1, short)
    first = _times(_up(drawn[:width].astype(np.float32), matrix.device).double(), matrix)
    second = _times(first / first.abs().amax(), matrix.T)
    basis = torch.linalg.qr(second.T)[0].T
    products = _times(basis, matrix)
    squares, turns = torch.linalg.eigh(products @ products.T)
    found = torch.cat([squares, _energy(matrix)[None]]) if cover else squares
    numbers = found.cpu().numpy()
    values = _roots(numbers[:width])
    turns = _signed(turns.T.flip(0)[: values.size])
    terms = DeviceSpectrum(core, values, turns @ basis, turns @ products)
    return _covered(terms, basis, _up(drawn[width], matrix.device), float(numbers[width])) if cover else terms


def _covered(found: DeviceSpectrum, basis: torch.Tensor, direction: torch.Tensor, energy: float) -> DeviceSpectrum:
    """Return `found` with a random term added for the rest of the matrix, whose squared norm is `energy`."""
    assert found.products is not None
    missing = energy - float(np.sum(found.values**2))
    if missing <= NOISE**2 * energy:
        return found
    for _ in range(2):  # the second projection removes the rounding errors of the first
        direction = direction - (basis @ direction) @ basis
        direction = direction / torch.linalg.vector_norm(direction)
    dimension = direction.numel() - len(basis)
    product = dimension * _times(direction[None], found.core.short_in_front)
    return DeviceSpectrum(
        found.core,
        np.append(found.values, math.sqrt(dimension * missing)),
        torch.cat([found.vectors, direction[None]]),
        torch.cat([found.products, product]),
    )


def _roots(squares: Float64s) -> Float64s:
    """Return the square roots of ascending eigenvalues, in descending order, without those that are not above the noise."""
    values = np.sqrt(np.maximum(squares[::-1], 0.0))
    return values[: np.count_nonzero(values > NOISE * values[0])].copy()


def _signed(vectors: torch.Tensor) -> torch.Tensor:
    """Return the rows (k, n) with signs such that the first entry of largest magnitude of each row is positive, as on the host.

    Thus a vector u and its negative -u give the same row.
    """
    peaks = vectors.gather(1, vectors.abs().argmax(dim=1, keepdim=True))
    return vectors * peaks.sign()


def _blocks(matrix: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield float64 copies of the matrix, a few rows at a time."""
    step = max(1, _BLOCK // max(matrix.shape[1], 1))
    for at in range(0, len(matrix), step):
        yield matrix[at : at + step].double()


def _times(vectors: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """Return `vectors` (k, m), float64, times `matrix` (m, n), float32. The product is (k, n), float64."""
    out = torch.zeros(len(vectors), matrix.shape[1], dtype=torch.float64, device=matrix.device)
    at = 0
    for block in _blocks(matrix):
        out.addmm_(vectors[:, at : at + len(block)], block)
        at += len(block)
    return out


def _energy(matrix: torch.Tensor) -> torch.Tensor:
    return torch.stack([block.square_().sum() for block in _blocks(matrix)]).sum()


def _spread(values: torch.Tensor, places: torch.Tensor | None, size: int) -> torch.Tensor:
    """Return rows of length `size` that hold `values` (k, kept entries) at the indices of these entries, and zeros elsewhere."""
    if places is None:
        return values
    return values.new_zeros(len(values), size).index_copy_(1, places, values)


def _up(array: Float64s | Int64s | np.ndarray, device: torch.device) -> torch.Tensor:
    return torch.tensor(array).to(device)
