"""The spectrum compared with LAPACK's singular value decomposition, and its terms compared with the matrix."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psnode.codecs.lowrank.spectrum import NOISE, matricise, spectrum
from psnode.errors import NonFiniteGradientError

RNG = np.random.default_rng(11)


def low_rank(m: int, n: int, rank: int) -> np.ndarray:
    return (RNG.standard_normal((m, rank)) @ RNG.standard_normal((rank, n))).astype(np.float32)


def sparse(m: int, n: int) -> np.ndarray:
    """Return a matrix like a 3x3 convolution on 1x1 maps: only centre taps are non-zero, and half of the rows are zero."""
    out = np.zeros((m, n), np.float32)
    out[::2, 4::9] = RNG.standard_normal(out[::2, 4::9].shape)
    return out


MATRICES = {
    "wide": RNG.standard_normal((20, 50)).astype(np.float32),
    "tall": RNG.standard_normal((50, 20)).astype(np.float32),
    "square": RNG.standard_normal((30, 30)).astype(np.float32),
    "heavy tail": RNG.standard_t(1.5, (40, 30)).astype(np.float32),
    "one row": RNG.standard_normal((1, 9)).astype(np.float32),
    "one column": RNG.standard_normal((9, 1)).astype(np.float32),
    "one entry": np.array([[-2.5]], np.float32),
    "rank 3 wide": low_rank(20, 60, 3),
    "rank 3 tall": low_rank(60, 20, 3),
    "all equal": np.full((8, 12), 0.1, np.float32),
    "identity": np.eye(16, dtype=np.float32),
    "dead rows and columns": sparse(40, 90),
    "dead so that the short side changes": sparse(64, 90),
    "one-hot": np.eye(7, 9, dtype=np.float32) * np.array([0, 0, 0, 5, 0, 0, 0], np.float32)[:, None],
    "1e-30": (1e-30 * RNG.standard_normal((12, 17))).astype(np.float32),
    "1e30": (1e30 * RNG.standard_normal((12, 17))).astype(np.float32),
    "denormal": (1e-41 * RNG.standard_normal((12, 17))).astype(np.float32),
    "wider than a Gram block": RNG.standard_normal((3, 1_500_000)).astype(np.float32),
    "taller than a Gram block": RNG.standard_normal((1_500_000, 3)).astype(np.float32),
}


@pytest.mark.parametrize("name", MATRICES)
def test_values_are_the_singular_values(name):
    matrix = MATRICES[name]
    expected = np.linalg.svd(matrix.astype(np.float64), compute_uv=False)
    expected = expected[expected > NOISE * expected[0]]
    values = spectrum(matrix).values
    assert values.shape == expected.shape
    # The eigenvalues of the Gram matrix are the squares of the singular values. So an error of 1e-15 of the largest eigenvalue
    # becomes that error over twice the singular value.
    assert np.all(np.abs(values - expected) <= 1e-13 * expected[0] ** 2 / expected)


@pytest.mark.parametrize("name", MATRICES)
def test_the_terms_add_up_to_the_matrix(name):
    matrix = MATRICES[name]
    found = spectrum(matrix)
    left, right = found.terms(np.arange(found.values.size))
    assert left.shape == (found.values.size, matrix.shape[0])
    assert right.shape == (found.values.size, matrix.shape[1])
    assert np.abs(left.T @ right - matrix).max() <= 2e-7 * np.linalg.norm(matrix.astype(np.float64))


@pytest.mark.parametrize("name", MATRICES)
def test_terms_are_orthogonal_and_as_long_as_their_value(name):
    found = spectrum(MATRICES[name])
    left, right = found.terms(np.arange(found.values.size))
    unit, long = (right, left) if np.allclose(np.linalg.norm(right, axis=1), 1, atol=1e-9) else (left, right)
    assert np.abs(unit @ unit.T - np.eye(len(unit))).max() < 1e-12
    assert np.linalg.norm(long, axis=1) == pytest.approx(found.values, rel=1e-3, abs=1e-7 * found.values[0])


def test_chosen_terms_come_in_the_order_asked_for():
    found = spectrum(MATRICES["wide"])
    left, right = found.terms(np.arange(found.values.size))
    some_left, some_right = found.terms([7, 0, 3])
    assert np.array_equal(some_left, left[[7, 0, 3]])
    assert np.abs(some_right - right[[7, 0, 3]]).max() < 1e-12
    none_left, none_right = found.terms([])
    assert none_left.shape == (0, 20)
    assert none_right.shape == (0, 50)


@pytest.mark.parametrize("name", ["dead rows and columns", "dead so that the short side changes"])
def test_zero_rows_and_columns_come_back_as_exact_zeros(name):
    matrix = MATRICES[name]
    found = spectrum(matrix)
    left, right = found.terms(np.arange(found.values.size))
    assert np.array_equal(left.any(axis=0), matrix.any(axis=1))
    assert np.array_equal(right.any(axis=0), matrix.any(axis=0))


def test_a_zero_matrix_has_no_terms():
    found = spectrum(np.zeros((5, 8), np.float32))
    assert found.values.size == 0
    left, right = found.terms([])
    assert left.shape == (0, 5)
    assert right.shape == (0, 8)


@pytest.mark.parametrize("rank", [1, 2, 5])
def test_rounding_to_float32_does_not_raise_the_rank(rank):
    assert spectrum(low_rank(100, 300, rank)).values.size == rank


def test_the_sign_of_a_term_is_that_of_its_peak():
    found = spectrum(MATRICES["wide"])
    peaks = np.take_along_axis(found.vectors, np.abs(found.vectors).argmax(axis=1)[:, None], axis=1)
    assert np.all(peaks > 0)


def test_the_number_of_threads_changes_nothing_that_float32_shows():
    program = (
        "import numpy as np, sys; from psnode.codecs.lowrank.spectrum import spectrum;"
        "a = np.random.default_rng(5).standard_normal((200, 700)).astype(np.float32);"
        "s = spectrum(a); l, r = s.terms([0, 1, 2]); sys.stdout.buffer.write(np.concatenate([s.values, *l, *r]).tobytes())"
    )
    one, two = (
        np.frombuffer(
            subprocess.run(
                [sys.executable, "-c", program],
                env={**os.environ, "OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
                capture_output=True,
                check=True,
            ).stdout
        )
        for threads in "12"
    )
    assert np.abs(one - two).max() <= 1e-10 * np.abs(one).max()


@pytest.mark.parametrize(("value", "index"), [(np.nan, 37), (np.inf, 0), (-np.inf, 99)])
def test_values_that_are_not_finite_are_named(value, index):
    matrix = np.ones((5, 20), np.float32)
    matrix.flat[index] = value
    with pytest.raises(NonFiniteGradientError) as caught:
        spectrum(matrix)
    assert caught.value.index == index


def test_the_largest_float32_is_finite():
    big = np.full((3, 4), np.finfo(np.float32).max)
    assert spectrum(big).values == pytest.approx([float(big[0, 0]) * 12**0.5])


@pytest.mark.parametrize(
    ("shape", "cut"),
    [
        ((512, 512, 3, 3), (1, 512, 4608)),
        ((64, 3, 7, 7), (1, 64, 147)),
        ((10, 512), (1, 10, 512)),
        ((2, 3, 500), (2, 6, 500)),
        ((3, 3, 64, 64), (3, 576, 64)),
        ((4, 4, 4), (1, 4, 16)),
        ((1, 1, 30, 20), (3, 30, 20)),
        ((7,), (0, 1, 7)),
        ((), (0, 1, 1)),
        ((0, 5), (0, 1, 0)),
    ],
)
def test_the_cut_makes_the_smallest_message(shape, cut):
    assert matricise(shape) == cut


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=2, max_size=6).map(tuple))
def test_no_other_cut_is_cheaper(shape):
    split, m, n = matricise(shape)
    assert (m, n) == (int(np.prod(shape[:split])), int(np.prod(shape[split:])))
    assert all(m + n <= np.prod(shape[:k]) + np.prod(shape[k:]) for k in range(1, len(shape)))


def test_a_convolution_costs_154_times_less_cut_in_front_than_6_times_as_a_list_of_kernels():
    _, m, n = matricise((512, 512, 3, 3))
    dense = 512 * 512 * 9
    assert dense / (3 * (m + n)) == pytest.approx(153.6)
    assert dense / (3 * (131072 + 18)) == pytest.approx(6, abs=0.01)
