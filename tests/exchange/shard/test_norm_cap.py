"""The cap on gradient norms: gradients of honest workers are accepted, and disproportionately large ones are refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from psnode.config.effects import AUTO
from psnode.exchange.shard.norm_cap import SHARE, WINDOW, Norms, median, pack, unpack
from psnode.exchange.shard.norm_verdicts import IMPOSSIBLE, Closing, Judge
from psnode.plans.groups import Plan, Tensor
from psnode.plans.part import all_of
from psnode.plans.rule import make_plan
from psnode.records import checkpoint

Round = dict[int, float | tuple[float, ...]]


def plan_of(groups: int) -> Plan:
    tensors = [Tensor(f"layer{index}.weight", (4,)) for index in range(groups)]
    return make_plan(tensors, "identity", group_by="layer", min_compress_bytes=0)


def play(judge: Judge, rounds: list[Round], groups: int = 1, first: int = 1, members: int | None = None) -> list[tuple[int, int]]:
    """Play rounds in which all pushes arrive, and return the refusals as (round, rank). A push that is a single number is
    the norm of the first group; its other norms are 0.
    """
    refused = []
    for number, pushes in enumerate(rounds):
        held, ready = set(), []
        for group in range(groups):
            for rank, norms in sorted(pushes.items()):
                parts = norms if isinstance(norms, tuple) else (norms, *[0.0] * (groups - 1))
                if judge.suspects(group, rank, first + number, parts[group]):
                    held.add((group, rank))
        for group in range(groups):
            waits = any(where == group for where, _ in held)
            ready += judge.hear(Closing(group, number, 0.1), waits=waits, alone=(members or len(pushes)) == 1)
        assert sorted(each.group for each in ready) == list(range(groups))
        refused += sorted({(number, rank) for _, rank in held if (rank, first + number) in judge.verdicts})
    return refused


def rounds(count: int, workers: int, draw: Callable[[int], float]) -> list[Round]:
    return [{rank: draw(number) for rank in range(1, workers + 1)} for number in range(count)]


def bounded(cap: float | None = 10.0, groups: int = 1) -> Judge:
    return Judge(all_of(plan_of(groups)), cap)


# AUTO


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("at", [0, 1, 150])
def test_what_cannot_be_a_gradient_is_refused_whoever_sends_it(workers: int, at: int) -> None:
    for liar, value in itertools.product(range(1, workers + 1), (3e38, 0.01 * 2.0**128, 2.0**65)):
        played = rounds(at + 3, workers, lambda number: 1.0 + number % 3)
        played[at][liar] = value
        assert play(bounded(AUTO), played) == [(at, liar)]


def test_by_default_nothing_below_the_limit_is_refused_whatever_came_before() -> None:
    for before, after in ((1e-45, 1.0), (1e-30, 1e9), (0.0, 1e15), (1e-12, IMPOSSIBLE)):
        played: list[Round] = [{1: before, 2: before}] * 100 + [{1: before, 2: after}, {1: after, 2: before}]
        assert play(bounded(AUTO), played) == []


def test_by_default_gradients_that_are_large_throughout_are_accepted() -> None:
    assert play(bounded(AUTO), rounds(50, 3, lambda number: 1e20 + 1e23 * (number % 9 == 5))) == []
    assert play(bounded(AUTO), [{1: 1e25, 2: 2e24}] * 5) == []  # accepted from the first round


def test_by_default_a_single_worker_is_believed_whatever_it_sends() -> None:
    for cap in (AUTO, 10.0):
        assert play(bounded(cap), [{1: 1.0}] * 20 + [{1: 3e38}] + [{1: 1e-30}] * 3 + [{1: 3e38}]) == []


def test_by_default_a_worker_that_is_the_only_one_to_push_is_not_the_only_one() -> None:
    assert play(bounded(AUTO), [{1: 1.0}] * 20 + [{1: 3e38}], members=2) == [(20, 1)]


def test_a_refused_norm_does_not_raise_the_limit() -> None:
    assert play(bounded(AUTO), [{1: 1.0, 2: 1.0}, {1: 1.0, 2: 3e38}, {1: 1.0, 2: 3e38}]) == [(1, 2), (2, 2)]


# a number as cap


@pytest.mark.parametrize("workers", [2, 3, 4, 8])
@pytest.mark.parametrize("at", [0, 1, 7, 150])
def test_a_push_times_100_is_refused_whoever_sends_it(workers: int, at: int) -> None:
    """Check that a push times 100 is refused, for any sender. Usual norms are within a factor of 1.5, so that 100 times any
    of them exceeds ten times every other.
    """
    rng = np.random.default_rng(1)
    for liar in range(1, workers + 1):
        played = rounds(at + 3, workers, lambda number: float(rng.uniform(1, 1.5)))
        played[at][liar] *= 100  # type: ignore[operator]
        assert play(bounded(), played) == [(at, liar)]


def test_a_gradient_is_judged_as_a_whole() -> None:
    """Check that a scale parameter may get 1000 times its usual gradient if the whole gradient has its usual size."""
    played: list[Round] = [dict.fromkeys((1, 2, 3), (1.0, 0.001)) for _ in range(30)]
    played[20][2] = (1.0, 1.0)
    assert play(bounded(groups=2), played, groups=2) == []
    played[20][2] = (100.0, 1e-3)
    assert play(bounded(groups=2), played, groups=2) == [(20, 2)]


def test_what_most_workers_have_met_once_is_usual() -> None:
    """Check norms 100 times the usual, which each of four workers has in every eighth round, at different times: only the
    first three are refused.
    """
    played: list[Round] = [
        {rank: 100.0 if number % 8 == rank else 1.0 for rank in range(1, 5)} for number in range(400)
    ]  # fmt: skip
    assert play(bounded(), played) == [(1, 1), (2, 2), (3, 3)]


def test_honest_norms_that_scatter_by_hundreds_are_accepted() -> None:
    """Check that log-normal norms are accepted whose deviation grows from .1 to 1.1, although the largest are more than 30
    times the median. The seed is fixed.
    """
    rng = np.random.default_rng(2)
    played = rounds(2000, 4, lambda number: float(np.exp((0.1 + number / 2000) * rng.standard_normal())))
    assert max(max(pushes.values()) for pushes in played) > 30  # type: ignore[operator]
    assert play(bounded(), played) == []


def test_a_rise_or_fall_that_all_workers_see_is_accepted() -> None:
    for factor in (50.0, 1e6, 1e-6):
        assert play(bounded(), rounds(60, 4, lambda number, factor=factor: factor if number > 30 else 1.0)) == []  # type: ignore[misc]


def test_zero_gradients_say_nothing() -> None:
    """Check that zero norms lead to no refusals later: norms are zero while a part of the model is not yet used, or is used
    only rarely.
    """
    assert play(bounded(), rounds(100, 3, lambda number: 1.0 if number % 7 == 6 else 0.0)) == []
    assert play(bounded(), [{1: 0.0, 2: 0.0}] * 50 + [{1: 5.0, 2: 0.0}, {1: 0.0, 2: 7.0}]) == []


def test_who_pushes_while_the_others_have_stopped_is_believed() -> None:
    together: list[Round] = [{1: 1.0, 2: 1.0}] * 20
    assert play(bounded(), [*together, *[{1: 1.0}] * 20, *[{1: 50.0}] * 20], members=2) == []
    assert play(bounded(), [*together, *[{1: 50.0, 2: 1.0}] * 3], members=2) == [(20, 1), (21, 1), (22, 1)]


@pytest.mark.parametrize("workers", [2, 4])
def test_one_liar_cannot_raise_the_bound_step_by_step(workers: int) -> None:
    """Check a norm that grows ninefold in every round: only the first is accepted. If it raised the bound, the later pushes
    would be within the bound.
    """
    played: list[Round] = [dict.fromkeys(range(1, workers + 1), 1.0) for _ in range(200)]
    for number in range(50, 200):
        played[number][2] = 9.0 ** (number - 49)
    assert play(bounded(), played) == [(number, 2) for number in range(51, 200)]  # all but the first, with norm 9


def test_the_parts_of_a_step_that_come_in_two_rounds_are_one_gradient() -> None:
    judge = bounded(groups=2)
    for number in range(20):
        step = 1 + number // 2
        for rank in (1, 2):
            judge.suspects(number % 2, rank, step, 3.0 if number % 2 == 0 else 4.0)
        for group in (0, 1):
            judge.hear(Closing(group, number, 0.1), waits=False, alone=False)
    (whole,) = {name: value for name, value in judge.state().items() if name == "1/whole"}.values()
    assert whole.tolist() == [5.0] * 10


# AUTO and a number


def test_a_group_waits_only_if_it_has_suspects_and_until_all_have_come() -> None:
    judge = bounded(AUTO, groups=3)
    assert judge.hear(Closing(0, 1, 0.1), waits=False, alone=False) == [Closing(0, 1, 0.1)]
    judge.suspects(1, 2, 1, 3e38)
    assert judge.hear(Closing(1, 1, 0.1), waits=True, alone=False) == []
    assert judge.hear(Closing(2, 1, 0.1), waits=False, alone=False) == [Closing(1, 1, 0.1), Closing(2, 1, 0.1)]
    assert {key: (beyond.norm, beyond.group) for key, beyond in judge.verdicts.items()} == {(2, 1): (3e38, 1)}


def test_a_reference_is_the_largest_of_three() -> None:
    """Check that a rank's reference is the largest of three values: the median of recent norms (1), half the median of the
    ranks' largest norms (8 and 40: 4), and the other ranks' latest norm. Medians are lower medians.
    """
    norms = Norms()
    for step in range(40):
        norms.note({(1, step): 1.0, (2, step): 1.0})
    norms.note({(1, 40): 8.0, (2, 40): 40.0})
    norms.note({(1, 41): 1.0, (2, 41): 6.0})
    norms.renew()
    assert (norms.usual, norms.reference(1), norms.reference(2)) == (SHARE * 8, 6.0, SHARE * 8)
    for step in range(42, 42 + WINDOW):
        norms.note({(1, step): 1.0, (2, step): 1.0})
    norms.renew()
    assert norms.usual == 1.0  # the large norms are forgotten


def test_off_is_off() -> None:
    judge = bounded(None)
    assert play(judge, [{1: 1.0, 2: 3e38}] * 5) == []
    assert judge.state() == {}


def saved(tmp_path: Path, tensors: dict[str, object]) -> checkpoint.Checkpoint:
    """Return a stand-in for a checkpoint that holds these norms."""

    class Found:
        path = tmp_path

        def has(self, name: str) -> bool:
            return name == checkpoint.NORMS

    found = Found()
    found.state = tensors  # type: ignore[attr-defined]
    return found  # type: ignore[return-value]


@pytest.mark.parametrize("cap", [AUTO, 10.0])
def test_a_judge_that_is_taken_up_judges_as_before(cap: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("psnode.records.state_names.state_of", lambda found, name: found.state)
    judge, again = bounded(cap, 2), bounded(cap, 2)
    play(judge, [dict.fromkeys((1, 2, 3), (1.0 + number % 5, 2e20)) for number in range(130)], groups=2)
    again.take_up(saved(tmp_path, dict(judge.state())))
    assert {name: value.tolist() for name, value in again.state().items()} == {
        name: value.tolist() for name, value in judge.state().items()
    }
    later: list[Round] = [{1: (1.0, 2e20), 2: (1.0, 1e26), 3: (1.0, 2e27)}]
    assert play(again, later, 2, first=131) == play(judge, later, 2, first=131) == [(0, 2), (0, 3)][: 2 if cap == 10 else 0]


def test_norms_of_an_older_checkpoint_are_added_up_over_the_groups(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("psnode.records.state_names.state_of", lambda found, name: found.state)
    part, groups = all_of(plan_of(2)), {0: Norms({1: [3.0, 6.0], 2: [1.0]}), 1: Norms({1: [8.0]})}
    found = saved(tmp_path, dict(pack(groups, Norms(), 0.0, part)))
    assert unpack(found, part) == ({0: {1: [3.0, 6.0], 2: [1.0]}, 1: {1: [8.0]}}, {1: [3.0, 10.0], 2: [1.0]}, 10.0)


def test_who_is_gone_is_forgotten() -> None:
    norms = Norms()
    norms.note({(1, 0): 1.0, (2, 0): 1.0, (3, 0): 500.0})
    for step in range(1, 3 * WINDOW):
        norms.note({(1, step): 1.0, (2, step): 1.0})
    assert set(norms.kept) == {1, 2}


def test_medians_are_lower() -> None:
    assert [median(values) for values in ([], [3.0], [1.0, 9.0], [5.0, 1.0, 9.0], [4.0, 3.0, 2.0, 1.0])] == [None, 3, 1, 5, 2]
