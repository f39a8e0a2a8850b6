"""Distribution of an epoch's examples over the workers, and the examples that each worker draws."""

from __future__ import annotations

import numpy as np
import pytest

from psnode.config import Config
from psnode.master.example_dealing import ExampleDealing
from psnode.protocol.round import Round
from psnode.records.generations import Generation
from psnode.tasks.data.sampler import Sampler

EXAMPLES, BATCH = 1000, 10


def dealing(**settings: object) -> ExampleDealing:
    return ExampleDealing(Config(batch_size=BATCH, lr=0.1, **settings), EXAMPLES, [1, 2, 3, 4], [Generation(0, 4)])  # type: ignore[arg-type]


def taken(found: ExampleDealing, rank: int, first: int, last: int) -> list[int]:
    """Return the examples that `rank` takes in steps `first` to `last`."""
    deal = found.deal
    share = Sampler(EXAMPLES, rank - 1, 4, BATCH, seed=5).dealt(rank, deal.ranks, deal.sample_shift)
    return [int(example) for wanted in share.wanted(first, last) for batch in wanted for example in batch.indices]


def test_a_dead_workers_examples_are_the_others_from_the_next_epoch_on() -> None:
    """Check that the second epoch, 33 steps of 30 after 25 steps of 40 in the first, takes all but 10 examples, each once."""
    found = dealing(epochs=3)
    assert not found.renew(24, [1, 2, 4])
    assert found.renew(25, [1, 2, 4])
    assert not found.renew(25 + 33, [1, 2, 4])
    assert (found.ranks, found.parts) == ((1, 2, 4), (Generation(0, 4), Generation(25, 3)))
    drawn = [example for rank in found.ranks for example in taken(found, rank, 26, 25 + 33)]
    assert len(drawn) == len(set(drawn)) == 990
    assert found.last_step == 25 + 2 * 33
    assert dealing(max_steps=77).last_step == 77


def test_who_returns_gets_a_share_again_where_an_epoch_ends() -> None:
    found = dealing(epochs=3)
    found.renew(25, [1, 2, 4])
    assert not found.renew(40, [1, 2, 3, 4])
    assert found.renew(58, [1, 2, 3, 4])
    drawn = [example for rank in found.ranks for example in taken(found, rank, 59, 83)]
    assert sorted(drawn) == list(range(EXAMPLES))
    assert found.last_step == 25 + 33 + 25


def test_as_many_others_change_nothing_but_whose_the_shares_are() -> None:
    found = dealing(epochs=3)
    assert found.renew(25, [1, 2, 4, 5])
    assert (found.ranks, found.parts, found.last_step) == ((1, 2, 4, 5), (Generation(0, 4),), 75)
    drawn = [example for rank in found.ranks for example in taken(found, rank, 26, 50)]
    assert sorted(drawn) == list(range(EXAMPLES))


def test_without_a_change_the_shares_are_those_of_the_start() -> None:
    found = dealing(epochs=3)
    assert not any(found.renew(version, [4, 3, 2, 1]) for version in range(76))
    for rank in (1, 2, 3, 4):
        own = Sampler(EXAMPLES, rank - 1, 4, BATCH, seed=5)
        assert taken(found, rank, 1, 75) == [int(i) for step in range(1, 76) for batch in own.indices(step) for i in batch]


def test_when_nobody_is_left_nothing_is_dealt() -> None:
    assert not dealing(epochs=3).renew(25, [])


@pytest.mark.parametrize("rank", [3, 7])
def test_an_outsider_draws_examples_of_its_own_choice_each_once_in_an_epoch(rank: int) -> None:
    found = dealing(epochs=3)
    found.renew(25, [1, 2, 4])
    drawn = taken(found, rank, 26, 25 + 33)
    assert len(set(drawn)) == len(drawn) == 330
    shares = [set(taken(found, other, 26, 58)) for other in found.ranks]
    overlaps = [len(share & set(drawn)) for share in shares]
    # two sets of 330 out of 1000: hypergeometric, mean 108.9, deviation 7.0; five deviations: 5e-7 of seeds would fail
    np.testing.assert_allclose(overlaps, 108.9, atol=35)


def test_who_takes_a_place_takes_its_share() -> None:
    found = dealing(epochs=3)
    before = {rank: taken(found, rank, 1, 25) for rank in found.ranks}
    assert found.hand_over(6, [1, 3, 4]) == 2
    assert taken(found, 6, 1, 25) == before[2]
    assert [taken(found, rank, 1, 25) for rank in (1, 3, 4)] == [before[rank] for rank in (1, 3, 4)]
    assert not found.renew(25, [1, 3, 4, 6])
    assert found.parts == (Generation(0, 4),)


def test_the_rate_of_a_round_is_the_schedules_at_its_first_step_whatever_the_schedule_is_later() -> None:
    """Check a schedule with milestones after epochs 1 and 2 of 25 steps: its steps count from 0, so after 50 steps both
    milestones have passed.
    """
    found = dealing(epochs=3, lr_schedule="multistep", lr_milestones=[1, 2], lr_gamma=0.5)
    assert [found.rate(Round(version, 25 * version + 1, 25)) for version in range(3)] == [0.1, 0.05, 0.025]
    found.schedule = lambda step: 7.0
    assert found.rate(Round(2, 51, 25)) == 0.025
    assert found.rate(Round(3, 76, 25)) == 7.0
