"""Spectral ATOMO: a matrix as a few rank-one terms, sampled without bias.

A tensor is read as an m x n matrix A = sum lambda_i u_i v_i^T. Term i is sent with probability p_i = min(1, c lambda_i), scaled
by 1 / p_i. The constant c is chosen so that the p_i add up to `rank`, the expected number of terms. The expectation of the
decoded matrix is A. Its expected squared error is sum lambda_i^2 (1 - p_i) / p_i, which is the least for all p with this sum. A
message takes about 32 rank (m + n) bits instead of 32 m n. It always holds floor(rank) or ceil(rank) terms, or all terms if A
has at most `rank` terms.

    side information   uint16 split: the number of dimensions that form the rows; 0: the values are the array itself
                       uint16 number of terms k
    values             for each of k terms the m entries of its left factor, then the n entries of its right factor

The singular value and 1 / p are divided between the two factors of a term so that the entries of both have equal RMS. Neither
factor then leaves float32's range, and a quantiser after svd (`svd+qsgd`) sees one scale. If the two factors are quantised
without bias, independently, their product is unbiased too. If the sum of the terms would exceed float32's range (gradients
beyond 1e36), all terms are scaled down until it fits.

An array is sent unchanged if the terms would take no fewer values. This holds for vectors, scalars, and small or narrow
matrices.

Source: Wang, Sievert, Charles, Liu, Wright, Papailiopoulos, "ATOMO: Communication-efficient Learning via Atomic
Sparsification", NeurIPS 2018.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from psnode.codecs.arrays import Float64s, Int64s
from psnode.codecs.base import Bytes, Floats, Measured, Shape, Words
from psnode.codecs.kernels.finite import raise_nonfinite
from psnode.codecs.lowrank.atoms import (
    MAX_BUDGET,
    TICK_BITS,
    TICKS,
    optimal_probabilities,
    sampling_error,
    systematic_sample,
    ticks,
)
from psnode.codecs.lowrank.blas_threads import one_thread
from psnode.codecs.lowrank.deflated import Deflated, deflated
from psnode.codecs.lowrank.factors import fold, unfold
from psnode.codecs.lowrank.randomised import sketch
from psnode.codecs.lowrank.rank_one import add_terms, may_overflow, write_saturated, write_terms
from psnode.codecs.lowrank.spectrum import Spectrum, matricise, spectrum
from psnode.codecs.rng import BLOCK, fill
from psnode.codecs.stages import Reducer
from psnode.codecs.table import number_of
from psnode.codecs.traits import Traits
from psnode.errors import CodecSpecError, PayloadError

SIDE = 4


@dataclass(frozen=True, repr=False)
class Svd(Reducer):
    """svd:rank=3,method=exact,sample=true,cover=false.

    `rank`: the expected number of terms, a real number of at least 1. With a rank below 1, some messages would be empty, and
    the contractive form would send nothing. `sample=false` sends the floor(rank) largest terms unscaled instead. The codec is
    then biased and meant for feedback loops. Its error is at most (1 - floor(rank) / min(m, n)) ||x||^2. The time for the exact
    spectrum grows with the cube of the matrix's shorter side: 2 s at 2048, 20 s at 4096.

    `method=deflated` samples terms of a basis close to that of the singular vectors. It is unbiased like `method=exact`, takes
    less than half the time, and has hardly more variance (psnode/codecs/lowrank/deflated.py). With sample=false it sends the
    same terms as `method=randomised`.

    `method=randomised` finds only the largest terms, in a random subspace. It is many times faster on large matrices. Since the
    part of the matrix outside the subspace is lost, terms are not sampled by default. With `cover=true`, terms are sampled, and
    a random term is added for that part. The result is unbiased, but has a large variance, which `omega` computes.

    A matrix of rank one consists of one term, which is sent with probability 1:

    >>> from psnode.codecs import get_codec
    >>> codec, x = get_codec("svd:rank=1"), np.outer(np.arange(40), np.arange(60)).astype(np.float32)
    >>> payload = codec.encode(x, np.random.default_rng(1))
    >>> x.nbytes, payload.nbytes, bool(np.allclose(codec.decode(payload), x, atol=0.01))
    (9600, 424, True)
    """

    rank: float = 3.0
    method: Literal["exact", "deflated", "randomised"] = "exact"
    sample: bool | None = None
    """None: true if sampling is unbiased."""
    cover: bool = False

    id = "svd"

    def __post_init__(self) -> None:
        """Raise CodecSpecError for a value out of bounds or for parameters that contradict each other."""
        if not 1 <= self.rank <= MAX_BUDGET:
            raise CodecSpecError(f"svd: rank={self.rank:g} must be in [1, {MAX_BUDGET}]: it is the number of terms sent")
        if self.method not in ("exact", "deflated", "randomised"):
            raise CodecSpecError(f"svd: method={self.method!r} is not known: valid are exact, deflated, randomised")
        if self.cover and self.method != "randomised":
            raise CodecSpecError(f"svd: cover=true needs method=randomised: method={self.method} leaves nothing to cover")
        covered = self.method != "randomised" or self.cover
        if self.sample and not covered:
            raise CodecSpecError("svd: method=randomised,sample=true is biased: add cover=true, or leave sample out")
        if self.cover and self.sample is False:
            raise CodecSpecError("svd: cover=true,sample=false contradict each other: leave one of them out")
        if self.sample is None:
            object.__setattr__(self, "sample", covered)

    @property
    def traits(self) -> Traits:
        """The traits of the codec. It is unbiased if terms are sampled."""
        return Traits(shaped=True, unbiased=bool(self.sample))

    def contractive(self) -> Svd:
        """Return the codec that sends the largest terms unscaled."""
        return dataclasses.replace(self, sample=False, cover=False) if self.sample else self

    def omega(self, x: Floats, key: Words | None = None) -> float:
        """Return E||decode(encode(x)) - x||^2 / ||x||^2 for this x, except for float32 rounding, or 0 for a zero array.

        For methods other than exact, `key` (two uint64; zeros if None) determines the random subspace. Its influence on the
        result is small.
        """
        split, m, n = self.cut(x.shape)
        energy = float(np.sum(np.square(x, dtype=np.float64)))
        if not split or not energy:
            return 0.0
        with one_thread():
            found = self._find(np.ascontiguousarray(x).reshape(m, n), np.zeros(2, np.uint64) if key is None else key)
            lengths = found.lengths()
        if self.sample:
            return (found.excess + sampling_error(lengths, optimal_probabilities(found.values, self.rank))) / energy
        return max(0.0, 1 - float(np.sum(found.values[: int(self.rank)] ** 2)) / energy)

    def _find(self, matrix: Floats, key: Words) -> Spectrum | Deflated:
        if self.method == "exact":
            return spectrum(matrix)
        if self.method == "deflated" and self.sample:
            return deflated(matrix, math.ceil(self.rank), key)
        return sketch(matrix, math.ceil(self.rank), key, cover=self.cover)

    def cut(self, shape: Shape) -> tuple[int, int, int]:
        """Return (split, m, n) of the m x n matrix to factorise.

        split is 0 if terms would take no fewer values than the array.
        """
        split, m, n = matricise(shape)
        return (split, m, n) if math.ceil(self.rank) * (m + n) < m * n else (0, 1, math.prod(shape))

    def _max_parts(self, shape: Shape) -> tuple[int, int]:
        split, m, n = self.cut(shape)
        return SIDE, math.ceil(self.rank) * (m + n) if split else m * n

    def _reduce(self, x: Floats, key: Words, side: Bytes) -> tuple[int, Floats]:
        split, m, n = self.cut(x.shape)
        fields = side.view(np.uint16)
        if not split:
            if not np.isfinite(x).all():
                raise_nonfinite(x)
            fields[:] = 0, 0
            return SIDE, x.reshape(-1)
        with one_thread():
            found = self._find(x.reshape(m, n), key)
            chosen, probabilities = self.choose(found.values, key)
            fields[:] = split, chosen.size
            return SIDE, fold(*found.terms(chosen), probabilities)

    def choose(self, values: Float64s, key: Words) -> tuple[Int64s, Float64s]:
        """Return the indices of the terms to send, and the probabilities by which these terms must be divided."""
        if not self.sample:
            chosen = np.arange(min(int(self.rank), values.size))
            return chosen, np.ones(chosen.size)
        shares = ticks(optimal_probabilities(values, self.rank), self.rank)
        chosen = systematic_sample(shares, _start(key))
        return chosen, shares[chosen] / TICKS

    def _count(self, side: Bytes, shape: Shape) -> int:
        if side.size != SIDE:
            raise PayloadError(f"svd: {side.size} bytes of side information instead of {SIDE}")
        split, terms, m, n = sizes(side, shape)
        if not split:
            if terms:
                raise PayloadError(f"svd: {terms} terms of a matrix that is not split")
            return m * n
        if split >= len(shape) or terms > min(m, n):
            raise PayloadError(f"svd: {terms} terms, split after dimension {split}, cannot belong to shape {shape}")
        return terms * (m + n)

    def _expand(self, side: Bytes, values: Floats, out: Floats) -> None:
        split, terms, m, n = sizes(side, out.shape)
        if not split:
            out[...] = values.reshape(out.shape)
            return
        factors, matrix = unfold(values, terms, m, n), out.reshape(m, n)
        if may_overflow(*factors):
            write_saturated(*factors, matrix)
        else:
            write_terms(*factors, matrix)

    def _expand_add(self, side: Bytes, values: Floats, out: Floats, weight: np.float32) -> None:
        split, terms, m, n = sizes(side, out.shape)
        if not split:
            out += weight * values.reshape(out.shape)
            return
        factors = unfold(values, terms, m, n)
        if may_overflow(*factors):
            super()._expand_add(side, values, out, weight)
        else:
            add_terms(*factors, out.reshape(m, n), weight)

    def _measure_parts(self, side: Bytes, values: Floats, shape: Shape) -> Measured | None:
        """Return the norm, computed from the factors: ||sum of l_k r_k^T||^2 = sum over j, k of <l_j, l_k> <r_j, r_k>."""
        split, terms, m, n = sizes(side, shape)
        if not split:
            return None
        left, right = unfold(values, terms, m, n)
        if may_overflow(left, right):
            return None
        lefts, rights = left.astype(np.float64), right.astype(np.float64)
        energy = float(np.sum((lefts @ lefts.T) * (rights @ rights.T)))
        return Measured(math.sqrt(max(0.0, energy)), lambda out, weight: add_terms(left, right, out.reshape(m, n), weight))


def sizes(side: Bytes, shape: Shape) -> tuple[int, int, int, int]:
    """Return split, number of terms, m and n, which the side information states for an array of `shape`."""
    split, terms = side.view(np.uint16).tolist()
    return split, terms, math.prod(shape[:split]), math.prod(shape[split:])


def _start(key: Words) -> int:
    """Return a uniform random integer in [0, 2^48), made of the first two words of the stage's stream."""
    words = np.empty(4 * BLOCK, np.uint32)
    fill(words, key, number_of("svd"), 0)
    return (int(words[0]) << 32 | int(words[BLOCK])) >> (64 - TICK_BITS)
