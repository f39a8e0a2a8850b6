"""The singular value decomposition of a gradient matrix, as rank-one terms whose sum is the matrix.

Every tensor is read as a matrix A by cutting its shape in two (`matricise`). The Gram matrix of the short side is formed in
float64 and passed to LAPACK's symmetric eigensolver. The singular values are the roots of its eigenvalues, and the singular
vectors u_i of the short side are its eigenvectors. For 512 x 4608 this takes a tenth of the time of a full decomposition.
Squares of float32 are within 10^-90 .. 10^77, so that no scaling is needed in float64.

The vector of the other side, w_i = A^T u_i, is computed when needed. Since the u_i are orthonormal up to rounding, the terms
u_i w_i^T add up to A even if single directions u_i are inaccurate. This happens if singular values are nearly equal, so that
their directions are not determined. Squaring loses the smallest singular values: values below 2^-22 of the largest are rounding
noise of the Gram matrix, and are taken as zero. This limit corresponds to float32's resolution of the largest term.

The workspace is 8 bytes times the larger of 2^22 and five times the square of the short side. The time of the eigensolver grows
with the cube of the short side: 25 ms for 512, 2 s for 2048, 20 s for 4096. For still larger matrices use method=randomised.

Rows and columns of zeros are removed before the decomposition, and are exactly zero in the terms. They belong to dead units, or
to taps of a convolution that see only padding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from psnode.codecs.arrays import Float64s, Floats, Int64s
from psnode.codecs.kernels.finite import raise_nonfinite

NOISE = 2.0**-22
_GRAM_BLOCK = 1 << 22
_PROJECT_BLOCK = 1 << 16


def matricise(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return (split, m, n) for the cut of `shape` into shape[:split] and shape[split:] with the least m + n.

    The cut turns the tensor into an m x n matrix. A pair of factors takes m + n values, so that this cut makes the smallest
    message: 512 x 512 x 3 x 3 is read as 512 x 4608, not as 262144 x 9. Among equal cuts, the first is taken. Shapes with fewer
    than two dimensions or without elements are not cut, and split is 0.
    """
    if len(shape) < 2 or 0 in shape:
        return 0, 1, math.prod(shape)
    cuts = ((k, math.prod(shape[:k]), math.prod(shape[k:])) for k in range(1, len(shape)))
    return min(cuts, key=lambda cut: cut[1] + cut[2])


class Core(NamedTuple):
    """A matrix of `shape` without its zero rows and columns, and the indices of the rows and columns that remain."""

    values: Floats
    rows: Int64s
    columns: Int64s
    shape: tuple[int, int]

    @property
    def tall(self) -> bool:
        """True if the columns are the short side, that is if there are more rows than columns."""
        m, n = self.values.shape
        return bool(m > n)

    def factors(self, short: Float64s, long: Float64s) -> tuple[Float64s, Float64s]:
        """Return the factors (left, right) of k terms, (k, m) and (k, n), float64.

        They are made of the terms' vectors `short` and `long`, on the core's short and long side.
        """
        inner_left, inner_right = (long, short) if self.tall else (short, long)
        left, right = np.zeros((len(short), self.shape[0])), np.zeros((len(short), self.shape[1]))
        left[:, self.rows] = inner_left
        right[:, self.columns] = inner_right
        return left, right


@dataclass(frozen=True, slots=True)
class Spectrum:
    """The terms of a matrix: their lengths, and the vectors from which their factors are computed."""

    core: Core
    values: Float64s
    """(r,), float64, positive: the singular values, descending."""
    vectors: Float64s
    """(r, short side of the core): orthonormal vectors of the short side."""
    products: Float64s | None = None
    """(r, long side of the core): the vectors of the other side, whose lengths are the values. None: they are core^T vectors."""
    excess: float = 0.0
    """Variance of the terms before sampling: 0 unless one of the terms is random."""

    def terms(self, chosen: npt.ArrayLike) -> tuple[Float64s, Float64s]:
        """Return the factors (left, right) of the k terms with the indices `chosen`: float64, of shapes (k, m) and (k, n).

        The sum over all i of left[i] right[i]^T is the matrix or, if the terms come from a random subspace, an approximation of
        it. One of the two factors is a unit vector, and the length of the other is the singular value.
        """
        indices = np.asarray(chosen, dtype=np.int64)
        short = self.vectors[indices]
        long = project(self.core, short) if self.products is None else self.products[indices]
        return self.core.factors(short, long)

    def lengths(self) -> Float64s:
        """Return the lengths of the terms, which are the singular values."""
        return self.values


def spectrum(matrix: Floats) -> Spectrum:
    """Return the spectrum of `matrix`, float32, 2-D, not empty. The spectrum of a zero matrix is empty.

    In each vector of the short side, the first entry of largest magnitude is made positive, so that signs do not depend on the
    solver. The result depends only on `matrix`, machine, library version and number of BLAS threads. Raises
    NonFiniteGradientError.
    """
    core = trim(matrix)
    gram = _gram(core)
    if not np.isfinite(np.trace(gram)):  # squares of finite float32 values do not overflow float64
        raise_nonfinite(matrix)
    return Spectrum(core, *eigenpairs(gram))


def trim(matrix: Floats) -> Core:
    """Return `matrix` as a Core, without its zero rows and columns. It is copied only if it has some."""
    rows, columns = np.flatnonzero(matrix.any(axis=1)), np.flatnonzero(matrix.any(axis=0))
    values = matrix if (rows.size, columns.size) == matrix.shape else matrix[np.ix_(rows, columns)]
    return Core(values, rows, columns, (matrix.shape[0], matrix.shape[1]))


def eigenpairs(gram: Float64s) -> tuple[Float64s, Float64s]:
    """Return the square roots of a Gram matrix's eigenvalues, descending, and the eigenvectors as rows.

    Values that do not exceed the rounding noise are omitted.
    """
    if not gram.size:
        return np.zeros(0), np.zeros(gram.shape)
    squares, basis = np.linalg.eigh(gram)
    values = np.sqrt(np.maximum(squares[::-1], 0.0))
    kept = int(np.count_nonzero(values > NOISE * values[0]))
    vectors = np.ascontiguousarray(basis.T[::-1][:kept])
    peaks = vectors[np.arange(kept), np.argmax(np.abs(vectors), axis=1)]
    vectors *= np.sign(peaks)[:, None]
    return values[:kept].copy(), vectors


def _gram(core: Core) -> Float64s:
    """Return the Gram matrix of the short side in float64. The long side is cut into blocks to bound the workspace."""
    matrix = core.values.T if core.tall else core.values
    short, long = matrix.shape
    step = max(short, _GRAM_BLOCK // max(short, 1))
    total = np.zeros((short, short))
    for at in range(0, long, step):
        block = matrix[:, at : at + step].astype(np.float64)
        total += block @ block.T
    return total


def project(core: Core, vectors: Float64s) -> Float64s:
    """Return the products of `vectors` (k, short side) with the core. They are (k, long side), accumulated in float64."""
    m, n = core.values.shape
    step = max(1, _PROJECT_BLOCK // max(n, 1))
    out = np.zeros((len(vectors), max(m, n)))
    for at in range(0, m, step):
        block = core.values[at : at + step].astype(np.float64)
        if core.tall:
            out[:, at : at + step] = vectors @ block.T
        else:
            out += vectors[:, at : at + step] @ block
    return out
