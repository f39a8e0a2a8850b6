"""Terms of the deflated basis: they sum to the matrix; their sample is unbiased with a variance close to the optimum.

Seeds are fixed, so a test passes always or never. A bound of 4.5 standard errors on about 300 means would fail a correct program
for a share of 2e-3 of the seeds.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys

import numpy as np
import pytest

from psnode.codecs import Payload, get_codec
from psnode.codecs.lowrank import eigen32
from psnode.codecs.lowrank.deflated import EXACT_BELOW, Deflated, deflated
from psnode.codecs.lowrank.eigen32 import eigenbasis
from psnode.errors import CodecSpecError, NonFiniteGradientError

RNG = np.random.default_rng(17)
WIDE, TALL, SQUARE = (130, 300), (300, 130), (140, 140)


def key(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(2**64, size=2, dtype=np.uint64)


def of_values(shape: tuple[int, int], values: np.ndarray) -> np.ndarray:
    """Return a matrix with these singular values and random singular vectors."""
    u, v = (np.linalg.qr(RNG.standard_normal((side, len(values))))[0] for side in shape)
    return ((u * values) @ v.T).astype(np.float32)


def tokens(shape: tuple[int, int], rank: int) -> np.ndarray:
    """Return a matrix like a linear layer's gradient over a few correlated tokens: of low rank except for rounding."""
    return (
        RNG.standard_t(3, (shape[0], rank)) @ (0.7 ** np.arange(rank)[:, None] * RNG.standard_normal((rank, shape[1])))
    ).astype(np.float32)


def trained(shape: tuple[int, int]) -> np.ndarray:
    """Return a matrix with a dominant direction and a power-law tail over three decades, for which omega of rank 3 is a few
    hundredths.
    """
    return of_values(shape, np.concatenate([[30.0, 5.0, 2.0], 1.0 / np.arange(1, min(shape) - 2) ** 1.4]))


def blocks(shape: tuple[int, int]) -> np.ndarray:
    """Return a matrix in which every other row and column is zero."""
    out = np.zeros((2 * shape[0], 2 * shape[1]), np.float32)
    out[::2, 1::2] = RNG.standard_normal(shape)
    return out


MATRICES = {
    "wide": RNG.standard_normal(WIDE).astype(np.float32),
    "tall": RNG.standard_normal(TALL).astype(np.float32),
    "square": RNG.standard_normal(SQUARE).astype(np.float32),
    "heavy tail": RNG.standard_t(1.5, WIDE).astype(np.float32),
    "all values equal": of_values(WIDE, np.full(130, 2.0)),
    "identity": np.eye(130, dtype=np.float32),
    "two clusters": of_values(TALL, np.repeat([5.0, 1e-2], 65)),
    "rank 1": of_values(WIDE, np.array([3.0])),
    "rank 8, as the subspace": of_values(WIDE, np.full(8, 1.0)),
    "rank 9": of_values(TALL, np.full(9, 1.0)),
    "tokens": tokens(WIDE, 32),
    "trained": trained(TALL),
    "ten decades": of_values(SQUARE, 10.0 ** -np.linspace(0, 10, 140)),
    "dead rows and columns": blocks((130, 140)),
    "one entry": np.eye(200, 150, 7, dtype=np.float32) * (np.arange(200) == 3)[:, None].astype(np.float32),
    "zero": np.zeros(WIDE, np.float32),
    "1e-30": (1e-30 * RNG.standard_normal(WIDE)).astype(np.float32),
    "1e30": (1e30 * RNG.standard_normal(TALL)).astype(np.float32),
    "1e-41": (1e-41 * RNG.standard_normal(WIDE)).astype(np.float32),
    "largest": np.where(RNG.random(WIDE) < 0.5, 1, -1) * np.finfo(np.float32).max,
    "small short side": RNG.standard_normal((EXACT_BELOW - 1, 300)).astype(np.float32),
}


def optimum(x: np.ndarray, budget: float) -> float:
    """Return the least variance of an unbiased sample, sum lambda^2 / p - sum lambda^2, for singular values lambda. The
    probabilities p <= 1 sum to `budget`, which bisection achieves.
    """
    lam = np.linalg.svd(x.astype(float), compute_uv=False)
    lam = lam[lam > 2.0**-22 * lam[0]]
    low, high = 0.0, 1 / lam[-1]
    for _ in range(200):
        c = (low + high) / 2
        low, high = (c, high) if np.minimum(1, c * lam).sum() < budget else (low, c)
    p = np.minimum(1, high * lam)
    return float(np.sum(lam**2 * (1 - p) / p))


@pytest.mark.parametrize("name", MATRICES)
def test_the_terms_add_up_to_the_matrix(name):
    matrix = MATRICES[name]
    found = deflated(matrix, 3, key(1))
    left, right = found.terms(np.arange(found.values.size))
    missing = left.T @ right - matrix
    assert np.linalg.norm(missing) <= 3e-6 * np.linalg.norm(matrix.astype(float))
    assert not missing[~matrix.any(axis=1)].any()
    assert not missing[:, ~matrix.any(axis=0)].any()


@pytest.mark.parametrize("name", MATRICES)
def test_the_vectors_of_the_short_side_are_orthonormal_in_float32(name):
    found = deflated(MATRICES[name], 3, key(2))
    left, right = found.terms(np.arange(found.values.size))
    unit = left if MATRICES[name].shape[0] <= MATRICES[name].shape[1] else right
    assert np.abs(unit @ unit.T - np.eye(len(unit))).max(initial=0) < 3e-6


@pytest.mark.parametrize("name", sorted(set(MATRICES) - {"zero"}))
def test_lengths_are_those_of_the_terms_and_values_are_near_them(name):
    found = deflated(MATRICES[name], 3, key(3))
    left, right = found.terms(np.arange(found.values.size))
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    assert found.lengths() == pytest.approx(lengths, rel=1e-9)
    assert np.all(np.diff(found.values) <= 0)
    if isinstance(found, Deflated):
        below = found.values[found.order >= len(found.head.values)].max(initial=0)
        assert np.abs(found.values**2 - lengths**2).max() <= 1e-5 * below**2 + 1e-9 * found.values[0] ** 2


def test_a_small_side_is_decomposed_exactly():
    x = MATRICES["small short side"]
    assert not isinstance(deflated(x, 3, key(1)), Deflated)
    assert isinstance(deflated(MATRICES["wide"], 3, key(1)), Deflated)
    exact, near = get_codec("svd"), get_codec("svd:method=deflated")
    assert exact.encode(x, np.random.default_rng(1)) == near.encode(x, np.random.default_rng(1))


@pytest.mark.parametrize("rank", [1, 3, 8])
@pytest.mark.parametrize(
    "name", ["wide", "tall", "square", "heavy tail", "all values equal", "tokens", "trained", "rank 9", "1e-30"]
)
def test_the_variance_is_within_a_twentieth_of_the_least_possible(name, rank):
    x = MATRICES[name]
    found = get_codec(f"svd:rank={rank},method=deflated").omega(x, key(5)) * np.sum(x.astype(float) ** 2)
    assert optimum(x, rank) * (1 - 1e-6) <= found <= 1.05 * optimum(x, rank)


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["wide", "tokens", "all values equal", "two clusters", "1e-30", "ten decades"])
def test_the_mean_of_decodes_is_the_matrix_and_their_variance_omega(name):
    """Compare the mean of 400 decodes with x along forty random directions, the matrix, its signs, a row, a column and three
    singular pairs, and the variance with omega.

    Many terms contribute to each of these sums, so their means are nearly normal. This does not hold along a single rare
    term.
    """
    x = MATRICES[name]
    scale = float(np.abs(x).max())
    codec, rng = get_codec("svd:rank=2.5,method=deflated"), np.random.default_rng(123)
    u, _, vt = np.linalg.svd(x.astype(float), full_matrices=False)
    row, column = np.zeros_like(x), np.zeros_like(x)
    row[3], column[:, 5] = np.sign(x[3]), np.sign(x[:, 5])
    pairs, directions = (np.outer(u[:, i], vt[i]) for i in range(3)), np.random.default_rng(9).standard_normal((40, *x.shape))
    tests = np.array([x / scale, np.sign(x), row, column, *pairs, *directions], float).reshape(-1, x.size)
    errors = [(codec.decode(codec.encode(x, rng)).astype(float) - x).ravel() / scale for _ in range(400)]
    samples = np.array([tests @ error for error in errors])
    deviation = samples.std(axis=0, ddof=1) / math.sqrt(len(samples))
    rounding = 3e-6 * np.linalg.norm(x.astype(float)) / scale * np.linalg.norm(tests, axis=1)
    assert np.all(np.abs(samples.mean(axis=0)) <= 4.5 * deviation + rounding)
    squares = np.array([np.sum(error**2) for error in errors])
    expected = codec.omega(x) * np.sum((x.astype(float) / scale) ** 2)
    assert abs(squares.mean() - expected) <= 4.5 * squares.std() / math.sqrt(len(squares)) + 0.02 * expected


def test_the_same_key_gives_the_same_bytes_on_any_number_of_blas_threads():
    program = (
        "import sys; import numpy as np; from psnode.codecs import get_codec;"
        "x = np.random.default_rng(3).standard_normal((300, 900)).astype(np.float32);"
        "sys.stdout.buffer.write(get_codec('svd:method=deflated').encode(x, np.random.default_rng(4)).to_bytes())"
    )
    one, two = (
        subprocess.run(
            [sys.executable, "-c", program], env=os.environ | {"OPENBLAS_NUM_THREADS": threads}, capture_output=True, check=True
        ).stdout
        for threads in "12"
    )
    assert one == two
    assert Payload.from_bytes(one).shape == (300, 900)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("shape", [WIDE, TALL])
def test_values_that_are_not_finite_are_named(shape, value):
    x = np.ones(shape, np.float32)
    x.flat[1234] = value
    with pytest.raises(NonFiniteGradientError) as caught:
        get_codec("svd:method=deflated").encode(x, np.random.default_rng(1))
    assert caught.value.index == 1234


def test_unsampled_it_sends_the_largest_terms_of_the_subspace():
    codec, x = get_codec("svd:rank=4,method=deflated"), MATRICES["trained"]
    assert codec.unbiased
    assert codec.contractive() == get_codec("svd:rank=4,method=deflated,sample=false")
    payload = codec.contractive().encode(x, np.random.default_rng(2))
    assert payload == get_codec("svd:rank=4,method=randomised").encode(x, np.random.default_rng(2))
    best = np.sqrt(np.sum(np.linalg.svd(x.astype(float), compute_uv=False)[4:] ** 2))
    assert np.linalg.norm(codec.decode(payload) - x.astype(float)) <= 1.05 * best


def test_there_is_nothing_to_cover():
    with pytest.raises(CodecSpecError, match="method=randomised"):
        get_codec("svd:method=deflated,cover=true")


# eigenvectors in float32


@pytest.fixture(params=["LAPACK's float32", "numpy"])
def _solver(request, monkeypatch):
    if request.param == "numpy":
        monkeypatch.setattr(eigen32, "_routine", lambda name: None)
    elif eigen32._routine("ssytrd") is None:
        pytest.skip("numpy does not come with its own OpenBLAS")


@pytest.mark.usefixtures("_solver")
@pytest.mark.parametrize("n", [1, 2, 5, 64, 200])
def test_eigenvectors_are_those_of_the_matrix(n):
    half = np.random.default_rng(n).standard_normal((n, n))
    gram = (half @ half.T).astype(np.float32)
    expected = np.linalg.eigvalsh(gram.astype(float))[::-1]
    found = eigenbasis(gram.copy())
    assert found.squares == pytest.approx(expected, abs=1e-5 * expected[0])
    vectors = found.vectors(np.arange(n))
    assert np.abs(vectors @ vectors.T - np.eye(n)).max() < 3e-6
    assert np.abs(vectors @ gram - expected[:, None] * vectors).max() <= 1e-5 * expected[0]
    some = found.vectors(np.array([n - 1, 0]))
    assert np.abs(some - vectors[[n - 1, 0]]).max() < 1e-6
    assert found.vectors(np.array([], int)).shape == (0, n)


@pytest.mark.usefixtures("_solver")
def test_a_matrix_without_entries_has_no_eigenvectors():
    found = eigenbasis(np.zeros((0, 0), np.float32))
    assert found.squares.size == 0
    assert found.vectors(np.array([], int)).shape == (0, 0)
