"""The singular value decomposition of a gradient matrix, as rank-one terms that add up to it.

Every tensor is read as a matrix by cutting its shape in two (`matricise`). The Gram matrix of the short side is formed in
float64 and handed to LAPACK's symmetric eigensolver: singular values are the roots of its eigenvalues, singular vectors of
the short side its eigenvectors. For 512 x 4608 that takes a tenth of the time of a full decomposition. Squares of float32
stay within 10^-90 .. 10^77, so float64 needs no scaling.

The vector of the other side is w_i = A^T u_i, computed when it is asked for. As the u_i are orthonormal to rounding, the
terms u_i w_i^T add up to A however inaccurate a single direction may be (clustered values have no directions of their own).
What is lost by squaring is the bottom of the spectrum: values below 2^-22 of the largest are rounding noise of the Gram
matrix, and are taken as zero. That is float32's own resolution of the largest term.

Rows and columns that are zero throughout (dead units, taps of a convolution that see padding only) are left out before all
this, and come back as exact zeros.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from psnode.codecs.finite import raise_nonfinite

Float32s = npt.NDArray[np.float32]
Float64s = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]

NOISE = 2.0**-22
_GRAM_BLOCK = 1 << 22
_PROJECT_BLOCK = 1 << 16


def matricise(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """(split, m, n): the cut of `shape` into shape[:split] and shape[split:] whose matrix m x n has the least m + n.

    A factor pair costs m + n values, so that cut makes the smallest message: 512 x 512 x 3 x 3 is read as 512 x 4608, not
    as 262144 x 9. The first of equals. Shapes of fewer than two dimensions, or without elements, have no cut: split is 0.
    """
    if len(shape) < 2 or 0 in shape:
        return 0, 1, math.prod(shape)
    cuts = ((k, math.prod(shape[:k]), math.prod(shape[k:])) for k in range(1, len(shape)))
    return min(cuts, key=lambda cut: cut[1] + cut[2])


@dataclass(frozen=True, slots=True)
class Spectrum:
    """Singular values of an m x n matrix, descending and positive, and what is needed to make its rank-one terms."""

    values: Float64s
    """(r,), float64."""
    vectors: Float64s
    """(r, short side of `core`): orthonormal singular vectors of the short side."""
    core: Float32s
    """The matrix without its zero rows and columns."""
    rows: Int64s
    columns: Int64s
    shape: tuple[int, int]

    def terms(self, chosen: npt.ArrayLike) -> tuple[Float64s, Float64s]:
        """Factors (left, right) of the terms with the indices `chosen`: shapes (k, m) and (k, n), float64.

        The matrix is the sum over all i of left[i] right[i]^T; one of the two is a unit vector, the other as long as the
        singular value.
        """
        short = self.vectors[np.asarray(chosen, dtype=np.int64)]
        tall = self.core.shape[0] > self.core.shape[1]
        long = _times(self.core, short) if tall else _transposed_times(self.core, short)
        inner_left, inner_right = (long, short) if tall else (short, long)
        left, right = np.zeros((len(short), self.shape[0])), np.zeros((len(short), self.shape[1]))
        left[:, self.rows] = inner_left
        right[:, self.columns] = inner_right
        return left, right


def spectrum(matrix: Float32s) -> Spectrum:
    """The spectrum of `matrix`, float32, 2-D, not empty. A zero matrix has an empty one.

    The signs of singular vectors are arbitrary: here the first entry of the largest magnitude of a short-side vector is
    positive, so that they do not depend on the solver. Deterministic for a machine, library version and number of threads.
    Raises NonFiniteGradientError.
    """
    rows, columns = np.flatnonzero(matrix.any(axis=1)), np.flatnonzero(matrix.any(axis=0))
    core = matrix if (rows.size, columns.size) == matrix.shape else matrix[np.ix_(rows, columns)]
    shape = (matrix.shape[0], matrix.shape[1])
    if core.size == 0:
        return Spectrum(np.zeros(0), np.zeros((0, 0)), core, rows, columns, shape)
    gram = _gram(core)
    if not np.isfinite(np.trace(gram)):  # squares of finite float32 do not overflow: the trace is finite if all entries are
        raise_nonfinite(matrix)
    squares, basis = np.linalg.eigh(gram)
    values = np.sqrt(np.maximum(squares[::-1], 0.0))
    kept = int(np.count_nonzero(values > NOISE * values[0]))
    vectors = np.ascontiguousarray(basis.T[::-1][:kept])
    peaks = vectors[np.arange(kept), np.argmax(np.abs(vectors), axis=1)]
    vectors *= np.sign(peaks)[:, None]
    return Spectrum(values[:kept].copy(), vectors, core, rows, columns, shape)


def _gram(core: Float32s) -> Float64s:
    """core core^T or core^T core, whichever is smaller, in float64; the workspace is bounded by cutting the long side."""
    m, n = core.shape
    long, short = max(m, n), min(m, n)
    step = max(short, _GRAM_BLOCK // short)
    total = np.zeros((short, short))
    for at in range(0, long, step):
        block = (core[at : at + step].T if m > n else core[:, at : at + step]).astype(np.float64)
        total += block @ block.T
    return total


def _times(core: Float32s, vectors: Float64s) -> Float64s:
    """(core vectors^T)^T for vectors (k, n): (k, m), accumulated in float64."""
    m, n = core.shape
    out = np.empty((len(vectors), m))
    step = max(1, _PROJECT_BLOCK // max(n, 1))
    for at in range(0, m, step):
        out[:, at : at + step] = vectors @ core[at : at + step].T.astype(np.float64)
    return out


def _transposed_times(core: Float32s, vectors: Float64s) -> Float64s:
    """vectors core for vectors (k, m): (k, n), accumulated in float64."""
    m, n = core.shape
    out = np.zeros((len(vectors), n))
    step = max(1, _PROJECT_BLOCK // max(n, 1))
    for at in range(0, m, step):
        out += vectors[:, at : at + step] @ core[at : at + step].astype(np.float64)
    return out
