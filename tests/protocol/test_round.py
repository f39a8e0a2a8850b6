"""Rounds of one step, in which a version's number gives the step, and rounds of several steps, in which it does not."""

from __future__ import annotations

import pytest

from psnode.protocol.round import Round


def test_in_rounds_of_one_step_the_step_is_the_version_that_it_makes() -> None:
    now = Round.after(0)
    for version in range(5):
        assert now == Round.after(version) == Round.after(0).at(version)
        assert (now.finished, now.first_step, now.last_step, now.number) == (version, version + 1, version + 1, version + 1)
        assert list(now.numbers) == [version + 1]
        now = now.following


def test_rounds_of_several_steps_count_on_without_a_gap() -> None:
    now, seen = Round.after(0, 3), list[int]()
    for version in range(4):
        assert (now.version, now.number, now.finished) == (version, version + 1, len(seen))
        seen += now.numbers
        assert now.last_step == len(seen)
        now = now.following
    assert seen == list(range(1, 13))


def test_a_round_whose_versions_began_with_others_steps_finds_the_rounds_around_it() -> None:
    now = Round(5, 6, 4)  # after five rounds of one step
    assert (now.finished, now.last_step) == (5, 9)
    assert now.at(7) == Round(7, 14, 4) == now.following.following
    assert now.at(7).at(5) == now


@pytest.mark.parametrize("steps", [1, 2, 3, 7])
@pytest.mark.parametrize("every", [1, 2, 5, 10])
def test_a_round_reaches_a_multiple_if_one_of_its_steps_is_one(steps: int, every: int) -> None:
    for version in range(30):
        now = Round.after(version, steps)
        assert now.reaches(every) == any(step % every == 0 for step in now.numbers)
