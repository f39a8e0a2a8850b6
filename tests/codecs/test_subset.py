"""Random subsets: all equally likely, and equal to a draw in plain Python from the same random words."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.stats import chisquare

from psnode.codecs.selection.subset import draw
from tests.codecs import index_oracle

STREAM = 17


def key_of(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(2**64, size=2, dtype=np.uint64)


def in_plain_python(count: int, size: int, key: np.ndarray) -> list[int]:
    return index_oracle.draw(count, size, (int(key[0]), int(key[1])), STREAM).tolist()


@pytest.mark.parametrize("size", [1, 2, 3, 63, 64, 65, 1000, 20_000])
def test_both_ends_find_what_plain_python_finds(size):
    for count in {0, 1, size // 100, size // 3, size // 2, size // 2 + 1, size - 1, size}:
        if count <= size:
            indices = draw(count, size, key_of(size), STREAM)
            assert indices.dtype == np.uint32
            assert indices.tolist() == in_plain_python(count, size, key_of(size))
            assert indices.size == count


@pytest.mark.parametrize(("size", "count"), [(7, 1), (7, 3), (7, 4), (6, 5), (5, 2)])
def test_every_subset_is_as_likely(size, count):
    """Check by a chi-square test that all subsets of small sets are equally likely, with 400 draws each; 1e-4 of seeds would
    fail a correct program.
    """
    subsets = dict.fromkeys(itertools.combinations(range(size), count), 0)
    for seed in range(400 * len(subsets)):
        subsets[tuple(draw(count, size, np.array([seed, 99], np.uint64), STREAM).tolist())] += 1
    assert chisquare(list(subsets.values())).pvalue > 1e-4


def test_every_coordinate_of_a_long_vector_is_as_likely_and_so_is_every_pair_of_neighbours():
    """Check the counts over 300 draws of 1000 out of 100 003 coordinates; each chi-square test fails a correct program for
    1e-4 of seeds.
    """
    size, count, draws = 100_003, 1000, 300
    place = np.zeros(size, int)
    neighbours = 0
    for seed in range(draws):
        indices = draw(count, size, key_of(seed), STREAM).astype(int)
        assert np.all(np.diff(indices) > 0)
        place[indices] += 1
        neighbours += np.count_nonzero(np.diff(indices) == 1)
    stretches = place[: size // 101 * 101].reshape(101, -1).sum(axis=1)
    # without replacement, counts vary less than those of a multinomial: the test is conservative by 1 %
    assert chisquare(stretches).pvalue > 1e-4
    assert chisquare(place[: size // 64 * 64].reshape(-1, 64).sum(axis=0)).pvalue > 1e-4
    expected = draws * count * (count - 1) / size
    assert abs(neighbours - expected) < 4 * np.sqrt(expected)


def test_keys_and_streams_give_different_subsets():
    one = draw(50, 10_000, key_of(1), STREAM)
    assert not np.array_equal(one, draw(50, 10_000, key_of(2), STREAM))
    assert not np.array_equal(one, draw(50, 10_000, key_of(1), STREAM + 1))
    assert np.array_equal(one, draw(50, 10_000, key_of(1), STREAM))
