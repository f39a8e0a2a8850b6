"""The bound on norms: pushes of honest workers are accepted, one out of all proportion is not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from psnode.exchange.shard.norm_cap import SHARE, WINDOW, Norms, median

Round = dict[int, float]


def play(norms: Norms, rounds: list[Round]) -> list[tuple[int, int]]:
    """Refusals in rounds of pushes, all of which come: pairs of round and rank."""
    refused = []
    for number, pushes in enumerate(rounds):
        accepted, held = [], []
        for rank, norm in sorted(pushes.items()):
            norms.offer(rank, norm)
            (accepted if norms.passes(norm) else held).append((rank, norm))
        for rank, norm in held:
            bound = norms.bound(rank)
            if bound is not None and norm > bound:
                refused.append((number, rank))
                norms.refuse(rank, norm)
            else:
                accepted.append((rank, norm))
        norms.accept(sorted(accepted))
    return refused


def rounds(count: int, workers: int, draw: Callable[[int], float]) -> list[Round]:
    return [{rank: draw(number) for rank in range(1, workers + 1)} for number in range(count)]


@pytest.mark.parametrize("workers", [2, 3, 4, 8])
@pytest.mark.parametrize("at", [0, 1, 7, 150])
def test_a_push_times_100_is_refused_whoever_sends_it(workers: int, at: int) -> None:
    """Norms within a factor of 1.5 of each other: a hundred times any of them exceeds ten times every other."""
    rng = np.random.default_rng(1)
    for liar in range(1, workers + 1):
        played = rounds(at + 3, workers, lambda number: float(rng.uniform(1, 1.5)))
        played[at][liar] *= 100
        assert play(Norms(10.0), played) == [(at, liar)]


def test_honest_norms_that_scatter_by_hundreds_are_accepted() -> None:
    """Log-normal, of a deviation that grows from .1 to 1.1: in the end the largest are 50 times the median. A seed: no chance."""
    rng = np.random.default_rng(2)
    played = rounds(2000, 4, lambda number: float(np.exp((0.1 + number / 2000) * rng.standard_normal())))
    assert max(max(pushes.values()) for pushes in played) > 30
    assert play(Norms(10.0), played) == []


def test_a_rise_or_fall_that_all_workers_see_is_accepted() -> None:
    for factor in (50.0, 1e6, 1e-6):
        assert play(Norms(10.0), rounds(60, 4, lambda number, factor=factor: factor if number > 30 else 1.0)) == []


def test_zero_gradients_say_nothing() -> None:
    """A part of the model that is used only now and then, or only later."""
    assert play(Norms(10.0), rounds(100, 3, lambda number: 1.0 if number % 7 == 6 else 0.0)) == []
    assert play(Norms(10.0), [{1: 0.0, 2: 0.0}] * 50 + [{1: 5.0, 2: 0.0}, {1: 0.0, 2: 7.0}]) == []


def test_who_is_alone_is_believed_the_second_time() -> None:
    assert play(Norms(10.0), [{1: 1.0}] * 20 + [{1: 1e3}] + [{1: 1.0}] * 3) == [(20, 1)]
    assert play(Norms(10.0), [{1: 1.0}] * 20 + [{1: 1e3}] * 20) == [(20, 1)]


def test_who_pushes_while_the_others_have_stopped_is_believed_the_second_time() -> None:
    together, alone = [{1: 1.0, 2: 1.0}] * 20, [{1: 1.0}] * 20
    assert play(Norms(10.0), [*together, *alone, *[{1: 50.0}] * 20]) == [(40, 1)]
    assert play(Norms(10.0), [*together, *[{1: 50.0, 2: 1.0}] * 3]) == [(20, 1), (21, 1), (22, 1)]


@pytest.mark.parametrize("workers", [2, 4])
def test_one_liar_cannot_raise_the_bound_step_by_step(workers: int) -> None:
    """Nine times the last in every round, and later pushes within the bound."""
    played = [dict.fromkeys(range(1, workers + 1), 1.0) for _ in range(200)]
    for number in range(50, 200):
        played[number][2] = 9.0 ** (number - 49)
    refused = play(norms := Norms(10.0), played)
    assert {rank for _, rank in refused} == {2}
    assert len(refused) == 149  # all but the first, of 9
    assert norms.usual == 1.0


def test_a_bound_is_the_cap_times_the_largest_reference() -> None:
    """Worker 1 has seen 8 once, worker 2 has seen 40: lower medians, so 1 or half of 8."""
    norms = Norms(5.0)
    play(norms, [{1: 1.0, 2: 1.0}] * 40 + [{1: 8.0, 2: 8.0}, {1: 1.0, 2: 1.0}])
    assert norms.usual == pytest.approx(max(1.0, SHARE * 8))
    norms.offer(2, 6.0)
    norms.offer(1, 1.0)
    assert norms.bound(1) == pytest.approx(5 * 6.0)
    assert norms.bound(2) == pytest.approx(5 * SHARE * 8)
    play(norms, [{1: 1.0, 2: 1.0}] * WINDOW)
    assert norms.usual == 1.0  # forgotten


def test_off_is_off_and_what_is_kept_is_taken_up() -> None:
    assert play(Norms(None), [{1: 1.0, 2: 3e38}] * 5) == []
    played = rounds(130, 3, lambda number: 1.0 + number % 5)
    first = Norms(10.0)
    play(first, played)
    again = Norms(10.0, first.kept)
    assert (again.kept, again.usual, again.bound(2)) == (first.kept, first.usual, first.bound(2))


def test_who_is_gone_is_forgotten() -> None:
    norms = Norms(10.0)
    play(norms, [{1: 1.0, 2: 1.0, 3: 500.0}] * 1 + [{1: 1.0, 2: 1.0}] * 3 * WINDOW)
    assert set(norms.kept) == {1, 2}


def test_medians_are_lower() -> None:
    assert [median(values) for values in ([], [3.0], [1.0, 9.0], [5.0, 1.0, 9.0], [4.0, 3.0, 2.0, 1.0])] == [None, 3, 1, 5, 2]
