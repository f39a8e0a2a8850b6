"""Deadlines that adapt to the durations of rounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from psnode.config import Config
from psnode.exchange.shard.consistency import rule_of
from psnode.master.deadlines import AdaptiveTimeout, patience_of


def adapted(rounds: list[float]) -> float:
    patience = AdaptiveTimeout(0.0, 120.0)
    for seconds in rounds:
        patience.add(seconds)
    return patience.of_round(pause=False)


def test_short_rounds_have_five_seconds_more() -> None:
    assert adapted([0.01, 0.02, 0.01, 0.5]) == pytest.approx(0.015 + 5)


@pytest.mark.parametrize("seed", range(5))
def test_uneven_rounds_have_six_median_deviations_more(seed: int) -> None:
    rounds = np.random.default_rng(seed).normal(20.0, 3.0, 41)
    middle = np.median(rounds)
    assert adapted(list(rounds)) == pytest.approx(middle + 6 * np.median(np.abs(rounds - middle)))


def test_long_and_even_rounds_have_five_seconds_more() -> None:
    """Check that rounds of 60 s +- .05 get a deadline of 65 s: six deviations are only .3 s, which is shorter than a pause
    of the network.
    """
    assert adapted([59.95, 60.0, 60.05] * 5) == pytest.approx(65.0)


def test_old_rounds_are_forgotten() -> None:
    assert adapted([100.0] * 30 + [10.0, 14.0] * 25) == pytest.approx(12 + 6 * 2)


def test_before_three_rounds_are_known_every_round_is_a_pause() -> None:
    patience = AdaptiveTimeout(0.0, 30.0)
    for _ in range(2):
        patience.add(1.0)
        assert patience.of_round(pause=False) == 30.0
    patience.add(1.0)
    assert patience.of_round(pause=False) == 6.0


def test_a_fixed_deadline_does_not_adapt_and_declared_pauses_are_longer() -> None:
    patience = AdaptiveTimeout(2.0, 30.0)
    assert (patience.of_round(pause=False), patience.of_round(pause=True)) == (2.0, 30.0)
    assert AdaptiveTimeout(50.0, 30.0).of_round(pause=True) == 50.0


def of_a_run(seconds: float, **settings: Any) -> float:
    """Return the deadline after 50 rounds that took `seconds` each."""
    config = Config(pause_deadline=90.0, **settings)
    patience = patience_of(config, rule_of(config, 4))
    for _ in range(50):
        patience.add(seconds)
    return patience.of_round(pause=False)


def test_a_synchronous_run_waits_as_long_as_in_a_pause_unless_a_deadline_is_set() -> None:
    assert of_a_run(0.007) == 90.0
    assert of_a_run(0.007, deadline=0.0) == pytest.approx(5.007)
    assert of_a_run(0.007, deadline=2.0) == 2.0


def test_a_synchronous_run_of_long_rounds_gives_them_their_time() -> None:
    assert of_a_run(200.0) == pytest.approx(205.0)


@pytest.mark.parametrize("rule", [{"consistency": "kofn", "num_aggregate": 1}, {"consistency": "ssp"}, {"consistency": "asp"}])
def test_rounds_that_do_not_wait_for_all_have_deadlines_that_follow_them(rule: dict[str, Any]) -> None:
    assert of_a_run(0.007, **rule) == pytest.approx(5.007)


def test_pauses_have_twice_what_the_longest_took() -> None:
    patience = AdaptiveTimeout(0.0, 30.0)
    for seconds in (10.0, 200.0, 20.0):
        patience.add(seconds, pause=True)
    assert patience.of_round(pause=True) == patience.of_round(pause=False) == 400.0


def test_the_first_round_may_take_five_pauses_before_the_job_is_given_up() -> None:
    patience = AdaptiveTimeout(0.0, 120.0)
    assert patience.hard_limit == 600.0
    patience.add(130.0, pause=True)
    assert patience.hard_limit == 260.0


def test_one_round_that_took_long_does_not_move_the_deadline_much() -> None:
    assert adapted([10.0, 11.0, 12.0] * 10 + [500.0]) < 20
