"""Deadlines that follow the rounds."""

from __future__ import annotations

import numpy as np
import pytest

from psnode.master.patience import Patience


def adapted(rounds: list[float]) -> float:
    patience = Patience(0.0, 120.0)
    for seconds in rounds:
        patience.add(seconds)
    return patience.of_round(pause=False)


def test_short_rounds_have_five_seconds() -> None:
    assert adapted([0.01, 0.02, 0.01, 0.5]) == 5.0


@pytest.mark.parametrize("seed", range(5))
def test_long_rounds_have_the_median_and_six_median_deviations(seed: int) -> None:
    rounds = np.random.default_rng(seed).normal(20.0, 2.0, 41)
    middle = np.median(rounds)
    assert adapted(list(rounds)) == pytest.approx(middle + 6 * np.median(np.abs(rounds - middle)))


def test_old_rounds_are_forgotten() -> None:
    assert adapted([100.0] * 30 + [10.0, 12.0] * 25) == pytest.approx(11 + 6 * 1)


def test_one_round_that_took_long_does_not_move_the_deadline_much() -> None:
    assert adapted([10.0, 11.0, 12.0] * 10 + [500.0]) < 20


def test_pauses_and_the_first_rounds_have_the_longer_deadline() -> None:
    patience = Patience(0.0, 120.0)
    assert patience.of_round(pause=True) == 120.0
    assert [patience.of_round(pause=False) for _ in range(4) if patience.add(0.1) is None] == [120.0, 120.0, 5.0, 5.0]
    assert patience.of_round(pause=True) == 120.0


def test_a_fixed_deadline_is_fixed() -> None:
    patience = Patience(2.0, 30.0)
    assert (patience.of_round(pause=False), patience.of_round(pause=True)) == (2.0, 30.0)
    for _ in range(10):
        patience.add(50.0)
    assert patience.of_round(pause=False) == 2.0
