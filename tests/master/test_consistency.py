"""Closing rules and the order of additions, exhaustively for few workers."""

from __future__ import annotations

from itertools import combinations, permutations

import pytest

from psnode.master.consistency import AdditionOrder, bulk_synchronous


def subsets(ranks: range) -> list[frozenset[int]]:
    return [frozenset(chosen) for k in range(len(ranks) + 1) for chosen in combinations(ranks, k)]


def test_bsp_closes_exactly_when_every_live_worker_has_arrived() -> None:
    for live in subsets(range(1, 5)):
        for arrived in subsets(range(1, 5)):
            assert bulk_synchronous(arrived, live) == (len(arrived) > 0 and all(rank in arrived for rank in live))


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
    """Every order of arrival, and every worker lost after every number of arrivals: all that was offered is added, in order."""
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
