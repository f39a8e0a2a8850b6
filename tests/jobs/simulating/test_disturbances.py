"""Disturbances of simulated jobs: work that standstills interrupt, random durations, and texts that are refused."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from psnode.errors import ConfigurationError
from psnode.jobs.simulating.disturbances import Death, Spread, Standstill, durations_of, of_rank, through


def test_texts_of_standstills_and_deaths() -> None:
    assert Standstill.of("2@3.0:5") == Standstill(2, 3.0, 8.0)
    assert Death.of("12@0.25") == Death(12, 0.25)


@pytest.mark.parametrize("text", ["2", "2@", "2@3:", "x@3:5", "2@-1:5", "2@3:5:6", "@3:5"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--stop must be RANK@SECONDS:DURATION"):
        Standstill.of(text)
    with pytest.raises(ConfigurationError, match="--kill must be RANK@SECONDS"):
        Death.of(text)


def test_standstills_of_a_worker_that_overlap_are_one() -> None:
    given = [Standstill(1, 5.0, 7.0), Standstill(2, 0.0, 9.0), Standstill(1, 1.0, 3.0), Standstill(1, 2.0, 4.0)]
    assert of_rank(given, 1) == [Standstill(1, 1.0, 4.0), Standstill(1, 5.0, 7.0)]


@pytest.mark.parametrize("seed", range(20))
def test_work_goes_on_only_outside_of_standstills(seed: int) -> None:
    """Compare the end of a piece of work with a count of hundredths of a second, in each of which the worker either works or
    is stopped.
    """
    random = np.random.default_rng(seed)
    edges = sorted(random.choice(500, 6, replace=False).tolist())
    stills = [Standstill(1, begin / 100, end / 100) for begin, end in zip(edges[::2], edges[1::2], strict=True)]
    start, work = int(random.integers(500)), int(random.integers(1, 300))
    tick, left = start, work
    while left:
        left -= not any(begin <= tick < end for begin, end in zip(edges[::2], edges[1::2], strict=True))
        tick += 1
    assert through(stills, start / 100, work / 100) == pytest.approx(tick / 100)


def test_log_normal_factors_have_mean_1_and_the_given_spread_and_are_those_of_the_seed() -> None:
    """Check that the mean of 4000 factors lies within six standard errors of 1, and the deviation of their logarithms within
    six of .2.
    """
    draw, again, other = Spread(0.2, seed=3).factors(5), Spread(0.2, seed=3).factors(5), Spread(0.2, seed=3).factors(6)
    found = [draw() for _ in range(4000)]
    assert np.mean(found) == pytest.approx(1, abs=6 * 0.2 / math.sqrt(4000))
    assert np.std(np.log(found)) == pytest.approx(0.2, abs=6 * 0.2 / math.sqrt(8000))
    assert [again() for _ in range(5)] == found[:5] != [other() for _ in range(5)]


def test_measured_durations_are_drawn_in_proportion_to_their_mean(tmp_path: Path) -> None:
    file = tmp_path / "times.txt"
    file.write_text("2\n2\n8\n")
    draw = Spread(relative=durations_of(file)).factors(1)
    assert {draw() for _ in range(100)} == {0.5, 2.0}


@pytest.mark.parametrize("content", ["", "fast", "1\n0", "1\n-2", "nan", "inf"])
def test_files_without_durations_are_refused(content: str, tmp_path: Path) -> None:
    file = tmp_path / "times.txt"
    file.write_text(content)
    with pytest.raises(ConfigurationError, match="--pass-times"):
        durations_of(file)
