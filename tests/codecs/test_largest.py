"""The k largest values compared with a stable sort; the sample that determines the threshold; values that are not finite."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from psnode.codecs import sources
from psnode.codecs.base import readonly
from psnode.codecs.kernels.large_values import places
from psnode.codecs.selection.largest import Scan
from psnode.codecs.selection.ranking import kth_largest
from psnode.codecs.selection.scans import Plain, Scanned, ScannedCopy, scanned
from psnode.errors import NonFiniteGradientError, NonFinitePartError

KEY = np.array([3, 7], np.uint64)
STREAM = 16
LONG = 70_001  # sampled, several strips, not a multiple of a row


def by_sorting(x: np.ndarray, keep: int) -> np.ndarray:
    """Return the ascending indices of the `keep` largest non-zero magnitudes; among equal magnitudes, the lowest indices."""
    order = np.lexsort((np.arange(x.size), -np.abs(x.astype(float))))[:keep]
    return np.sort(order[x[order] != 0])


def inputs(size: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(size)
    normal = rng.standard_normal(size)
    steps = np.arange(size) - size // 2
    cases = {
        "normal": normal,
        "heavy tail": rng.standard_t(1.2, size),
        "62 % zeros": normal * (rng.random(size) < 0.38),
        "zeros in runs": normal * (np.arange(size) // 100 % 3 == 0),
        "all zero": np.zeros(size),
        "all equal": np.full(size, -2.5),
        "signs": np.sign(normal),
        "five values": rng.integers(-2, 3, size),
        "one-hot": np.eye(1, size, size // 3)[0],
        "ascending": steps,
        "descending": -np.abs(steps[::-1]) - 1,
        "a few large beside ties": np.where(rng.random(size) < 1e-3, 100 * normal, 1.0),
        "denormal": normal * 1e-41,
        "1e30": normal * 1e30,
        "negative zeros": np.where(rng.random(size) < 0.5, -0.0, normal),
    }
    return {name: readonly(x.astype(np.float32)) for name, x in cases.items()}


@pytest.mark.parametrize("name", inputs(1))
@pytest.mark.parametrize("size", [1, 2, 63, 64, 65, 4095, 4096, 4097, LONG])
def test_the_k_largest_are_those_of_a_stable_sort(name, size):
    x = inputs(size)[name]
    for keep in sorted({1, 2, size // 1000, size // 100, size // 10, size // 2, size - 1, size} - {0}):
        if keep > size:
            continue
        found = Scan(Plain(x)).largest(keep, KEY, STREAM)
        assert np.array_equal(found.indices, by_sorting(x, keep))
        assert np.array_equal(found.values.view(np.uint32), x[found.indices].view(np.uint32))


@given(
    hnp.arrays(np.float32, st.integers(1, 300), elements=st.floats(-4, 4, width=16) | st.sampled_from([0.0, -0.0, 1.0])),
    st.integers(1, 300),
)
def test_any_short_vector(x, keep):
    keep = min(keep, x.size)
    assert np.array_equal(Scan(Plain(readonly(x))).largest(keep, KEY, STREAM).indices, by_sorting(x, keep))


@pytest.mark.parametrize("seed", range(20))
def test_the_sample_changes_nothing(seed):
    x = inputs(LONG)["62 % zeros"]
    key = np.random.default_rng(seed).integers(2**64, size=2, dtype=np.uint64)
    assert np.array_equal(Scan(Plain(x)).largest(700, key, STREAM).indices, by_sorting(x, 700))


def test_a_sample_that_misleads_costs_a_second_scan_and_nothing_else():
    """Check that the result is right if all large entries lie at sampled positions: too few entries then reach the
    threshold, and a second scan follows.
    """
    places = sampled(LONG // 64, LONG, KEY)
    x = inputs(LONG)["normal"].copy()
    x[places[::3]] += 100
    for target in (None, np.empty_like(x)):
        found = Scan(Plain(readonly(x)) if target is None else ScannedCopy(readonly(x), target)).largest(700, KEY, STREAM)
        assert np.array_equal(found.indices, by_sorting(x, 700))
    assert np.array_equal(target, x)


@pytest.mark.parametrize("name", ["normal", "ascending", "all equal", "62 % zeros"])
@pytest.mark.parametrize("limit", [1, 0x40000000])
@pytest.mark.parametrize("room", [0, 10, LONG])
def test_more_candidates_than_were_expected_change_nothing(name, limit, room):
    x = inputs(LONG)[name]
    for most in (1, 100, 5000, LONG):
        found = Scan(Plain(x)).at_least(limit, most, room)
        reach = x * (np.abs(x).view(np.uint32) >= limit)
        assert np.array_equal(found.indices, by_sorting(reach, most))


def test_a_threshold_is_inclusive():
    x = readonly(np.array([0.5, -2.0, np.nextafter(np.float32(2), np.float32(0)), 2.0, 3.0], np.float32))
    limit = int(np.float32(2).view(np.uint32))
    assert Scan(Plain(x)).at_least(limit, 5, 5).indices.tolist() == [1, 3, 4]


def test_the_target_receives_a_copy():
    x = inputs(LONG)["normal"]
    for keep in (3, LONG // 2):
        target = np.full(LONG, 9, np.float32)
        found = Scan(ScannedCopy(x, target)).largest(keep, KEY, STREAM)
        assert np.array_equal(target, x)
        assert found.indices.size == keep


@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("index", [0, 64, 4095, 4096, LONG - 1])
def test_one_value_that_is_not_finite_is_found(value, index):
    x = inputs(LONG)["heavy tail"].copy()
    x[index] = value
    for keep in (1, 70, LONG):
        with pytest.raises(NonFiniteGradientError) as caught:
            Scan(Plain(readonly(x))).largest(keep, KEY, STREAM)
        assert caught.value.index == index


def test_nothing_but_nans_is_found_too():
    with pytest.raises(NonFiniteGradientError) as caught:
        Scan(Plain(readonly(np.full(LONG, np.nan, np.float32)))).largest(5, KEY, STREAM)
    assert caught.value.index == 0


def test_the_largest_float32_is_finite():
    x = np.zeros(100, np.float32)
    x[7] = -np.finfo(np.float32).max
    assert Scan(Plain(readonly(x))).largest(3, KEY, STREAM).indices.tolist() == [7]


@given(hnp.arrays(np.uint32, st.integers(1, 200), elements=st.integers(0, 2**32 - 1) | st.integers(0, 3)), st.data())
def test_the_rank_and_its_ties_are_those_of_a_sort(found, data):
    rank = data.draw(st.integers(1, found.size))
    magnitudes = np.sort(found & np.uint32(0x7FFFFFFF))[::-1]
    limit, ties = kth_largest(found, rank)
    assert limit == magnitudes[rank - 1]
    assert ties == rank - np.count_nonzero(magnitudes > limit)


def sampled(count: int, size: int, key: np.ndarray) -> np.ndarray:
    """Return the positions that are read for a sample of `count` out of `size` coordinates."""
    found = np.empty(count, np.uint32)
    places(size, key, STREAM, found)
    return found.astype(int)


def test_a_sample_holds_one_coordinate_of_every_stretch_each_as_likely():
    """Check by a chi-square test that the sampled positions are uniform within 1000 stretches of 70 or 71; 1e-4 of seeds
    would fail.
    """
    from scipy.stats import chisquare

    places = np.zeros(70, int)
    for seed in range(40):
        found = sampled(1000, LONG, np.array([seed, 1], np.uint64))
        start = np.arange(1000) * (LONG / 1000)
        assert np.all((found >= np.floor(start)) & (found <= start + LONG / 1000))
        places += np.bincount(np.minimum(69, ((found - start + 0.5) / LONG * 1000 * 70).astype(int)), minlength=70)
    assert chisquare(places).pvalue > 1e-4


def test_a_sample_of_everything_is_everything():
    assert np.array_equal(sampled(777, 777, KEY), np.arange(777))


def summed(parts, residual) -> Scanned:
    return scanned(sources.Accumulated(parts, residual))


@pytest.mark.parametrize("name", inputs(1))
@pytest.mark.parametrize("keep", [1, 700, LONG // 2])
def test_a_sum_is_scanned_as_if_it_had_been_added_before(name, keep):
    x = inputs(LONG)[name]
    residual = inputs(LONG)["heavy tail"].copy()
    with np.errstate(over="ignore"):
        total = residual + x
    found = Scan(summed([(0, x)], residual)).largest(keep, KEY, STREAM)
    assert np.array_equal(residual, total)
    assert np.array_equal(found.indices, by_sorting(total, keep))
    assert np.array_equal(found.values, total[found.indices])


def test_a_sum_that_overflows_is_named():
    x = np.zeros(LONG, np.float32)
    x[40_000] = np.finfo(np.float32).max
    with pytest.raises(NonFiniteGradientError) as caught:
        Scan(summed([(0, readonly(x))], x.copy())).largest(5, KEY, STREAM)
    assert caught.value.index == 40_000


CUTS = [[0, LONG], [0, 1, 63, 4096, 40_000, LONG], [500, 4596, 4600, 9000], [LONG - 1, LONG]]


@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("keep", [1, 700, LONG // 2])
def test_a_sum_of_parts_is_scanned_as_if_they_had_been_added_before(cuts, keep):
    """Check that a sum of parts gives the result of the added array. The parts are adjacent, with gaps before the first
    part, between two of them (where one of `cuts` is skipped) and after the last.
    """
    x, residual = inputs(LONG)["normal"], inputs(LONG)["heavy tail"].copy()
    spans = [span for i, span in enumerate(itertools.pairwise(cuts)) if i != 2]
    parts = [(start, readonly(x[start:stop].copy())) for start, stop in spans]
    total = residual.copy()
    for start, stop in spans:
        total[start:stop] += x[start:stop]
    found = Scan(summed(parts, residual)).largest(keep, KEY, STREAM)
    assert np.array_equal(residual, total)
    assert np.array_equal(found.indices, by_sorting(total, keep))
    assert np.array_equal(found.values, total[found.indices])


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("index", [0, 5000, 69_999])
def test_a_sum_with_a_part_that_is_not_finite_is_undone(value, index):
    x, residual = inputs(LONG)["normal"].copy(), inputs(LONG)["heavy tail"].copy()
    x[index] = value
    before = residual.copy()
    parts = [(0, readonly(x[:300])), (300, readonly(x[300:]))]
    with pytest.raises(NonFinitePartError) as caught:
        Scan(summed(parts, residual)).largest(700, KEY, STREAM)
    assert caught.value.index == index
    np.testing.assert_allclose(residual, before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", inputs(1))
@pytest.mark.parametrize("keep", [1, 700, LONG // 2])
def test_a_difference_is_scanned_as_if_it_had_been_made_before(name, keep):
    x, y = inputs(LONG)[name], inputs(LONG)["heavy tail"]
    with np.errstate(over="ignore"):
        found = Scan(scanned(sources.Difference(x, y))).largest(keep, KEY, STREAM)
        difference = x - y
    assert np.array_equal(found.indices, by_sorting(difference, keep))
    assert np.array_equal(found.values, difference[found.indices])


def test_a_difference_that_is_not_finite_is_named():
    x, y = inputs(LONG)["normal"].copy(), inputs(LONG)["heavy tail"]
    x[66_000] = np.nan
    with pytest.raises(NonFiniteGradientError) as caught:
        Scan(scanned(sources.Difference(readonly(x), y))).largest(5, KEY, STREAM)
    assert caught.value.index == 66_000
