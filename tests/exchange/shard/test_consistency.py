"""Closing rules and the order of additions, tested exhaustively for few workers."""

from __future__ import annotations

from itertools import combinations, permutations, product

import pytest

from psnode.config import Config
from psnode.exchange.shard.consistency import AdditionOrder, Bounded, Synchronous, gradients_a_round, rule_of


def subsets(ranks: range) -> list[frozenset[int]]:
    return [frozenset(chosen) for k in range(len(ranks) + 1) for chosen in combinations(ranks, k)]


def test_bsp_closes_exactly_when_every_live_worker_has_arrived() -> None:
    for live in subsets(range(1, 5)):
        for arrived in subsets(range(1, 5)):
            awaited = dict.fromkeys(live - arrived, 7)
            assert Synchronous(4).closes(len(arrived), awaited, 7) == (len(arrived) > 0 and all(rank in arrived for rank in live))


@pytest.mark.parametrize("k", [1, 2, 3, 4, 9])
def test_k_of_n_closes_at_k_or_with_everybody_who_is_left(k: int) -> None:
    for left in subsets(range(1, 5)):
        for arrived in subsets(range(1, 5)):
            awaited = dict.fromkeys(left - arrived, 7)
            expected = len(arrived) > 0 and (len(arrived) >= k or not awaited)
            assert Synchronous(k).closes(len(arrived), awaited, 7) == expected


@pytest.mark.parametrize("staleness", [0, 1, 2, None])
@pytest.mark.parametrize("k", [1, 2])
def test_a_bounded_round_closes_unless_somebody_would_become_too_stale(staleness: int | None, k: int) -> None:
    version = 5
    for bases in product(range(2, 7), repeat=3):
        for arrived in range(4):
            awaited = dict(enumerate(bases[arrived:], 1))
            applied_next_round = [version + 1 - based for based in awaited.values()]
            in_time = staleness is None or all(age <= staleness for age in applied_next_round)
            enough = arrived >= k or (arrived > 0 and not awaited)
            assert Bounded(staleness, k).closes(arrived, awaited, version) == (enough and in_time)


def test_what_each_rule_takes() -> None:
    for based, version in product(range(6), repeat=2):
        assert Synchronous(3).accepts(based, version) == (based == version)
        assert Bounded(None).accepts(based, version) == (based <= version)
        assert Bounded(2).accepts(based, version) == (based <= version <= based + 2)


def test_the_configuration_names_the_rule() -> None:
    assert rule_of(Config(), 4) == Synchronous(4)
    assert rule_of(Config(consistency="kofn", num_aggregate=3), 4) == Synchronous(3)
    assert rule_of(Config(consistency="ssp", staleness=2), 4) == Bounded(2, 1)
    assert rule_of(Config(consistency="asp", num_aggregate=2), 4) == Bounded(None, 2)


def test_a_version_stands_for_the_batches_that_make_it() -> None:
    assert gradients_a_round(Config(), 4) == 4
    assert gradients_a_round(Config(consistency="kofn", num_aggregate=3), 4) == 4  # the fourth has computed its batch too
    assert gradients_a_round(Config(consistency="asp"), 4) == 1
    assert gradients_a_round(Config(consistency="ssp", num_aggregate=2), 4) == 2


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 5])
def test_additions_come_in_ascending_rank_whatever_the_order_of_arrival(workers: int) -> None:
    for arrival in permutations(range(1, workers + 1)):
        order = AdditionOrder[int](range(1, workers + 1), by_rank=True)
        added = []
        for count, rank in enumerate(arrival, 1):
            added += order.offer(rank, 10 * rank)
            waited_for = min(set(range(1, workers + 2)) - set(arrival[:count]))
            assert added == [10 * r for r in range(1, waited_for)]  # as early as the order allows
        assert order.arrived == frozenset(arrival)


def test_by_arrival_nothing_waits() -> None:
    order = AdditionOrder[str](range(1, 4), by_rank=False)
    assert [order.offer(rank, str(rank)) for rank in (3, 1, 2)] == [["3"], ["1"], ["2"]]


@pytest.mark.parametrize("by_rank", [True, False])
def test_a_rank_offers_once(by_rank: bool) -> None:
    order = AdditionOrder[str](range(1, 3), by_rank=by_rank)
    order.offer(2, "x")
    with pytest.raises(ValueError, match="twice"):
        order.offer(2, "y")


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_whoever_is_excused_holds_nobody_up_and_what_it_offered_counts(workers: int) -> None:
    """Check for every order of arrival, and for the loss of every worker at every moment, that all offered values are added
    in order.
    """
    for arrival in permutations(range(1, workers + 1)):
        for lost in range(1, workers + 1):
            for moment in range(workers + 1):
                order = AdditionOrder[int](range(1, workers + 1), by_rank=True)
                added = []
                for count, rank in enumerate(arrival):
                    if count == moment:
                        added += order.excuse(lost)
                    if rank != lost or count < moment:
                        added += order.offer(rank, rank)
                if moment == workers:
                    added += order.excuse(lost)
                offered = {rank for count, rank in enumerate(arrival) if rank != lost or count < moment}
                assert added == sorted(offered)


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_when_a_round_closes_early_the_rest_is_added_in_order(workers: int) -> None:
    for arrival in permutations(range(1, workers + 1)):
        for count in range(workers + 1):
            order = AdditionOrder[int](range(1, workers + 1), by_rank=True)
            added = [item for rank in arrival[:count] for item in order.offer(rank, rank)]
            assert added + order.rest() == sorted(arrival[:count])
