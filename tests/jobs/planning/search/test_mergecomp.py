"""MergeComp's schedules: its formula compared with figures by hand, and its halving with all cuts."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations, pairwise

import pytest

from psnode.errors import ConfigurationError
from psnode.jobs.planning.profile import HostCosts, Profile, TensorTimes
from psnode.jobs.planning.scenario import GOODPUT, Scenario
from psnode.jobs.planning.search.codec_curves import CodecCurves, CostLine
from psnode.jobs.planning.search.grouping import CodecCandidate, Grouping, SmallTensorRules
from psnode.jobs.planning.search.mergecomp import lowest, merged, merged_step, merged_while_it_gains
from psnode.jobs.planning.search.step_clocks import StepClocks
from tests.jobs.planning.search.step_cases import random_candidate, random_profile

FREE = HostCosts(0.0, 0.0, 0.0, 0.0, 2, 1.0)
RATE = 8e6 / GOODPUT  # a million bytes a second
NOTHING = CostLine(0.0, 0.0, 0.0)
RULES = SmallTensorRules(min_compress_bytes=0)


def clocks_of(sizes: list[int], *, fixed: float, each: float, workers: int = 2, rate: float = RATE) -> StepClocks:
    """Return the StepClocks of a model whose tensors are matrices of 10 rows. Each gradient takes .1 s to compute. A frame has
    `fixed` bytes plus `each` bytes per coordinate, and takes .02 s to code.

    """
    tensors = tuple(TensorTimes((10, size // 10), 0.1 * (place + 1), 0.0, f"tensor {place}") for place, size in enumerate(sizes))
    profile = Profile("model", 1, 0.05, 0.1 * len(sizes), 0.0, tensors, FREE, {}, {})
    line = CostLine(fixed, each, each)
    curves = CodecCurves(line, NOTHING, CostLine(0.02, 0.0, 0.0), NOTHING, NOTHING, NOTHING, NOTHING, NOTHING)
    return StepClocks(profile, [CodecCandidate("own", "qsgd", curves, 0.1)], Scenario(workers, rate, 0.0, 4), RULES)


def test_the_formula_by_hand() -> None:
    """Check steps by hand: groups are coded at .1 + .02 and .3 + .04 s; 2 frames of 50 000 bytes take .1 s, and 2 of 200 000
    take .4 s.
    """
    clocks = clocks_of([50_000, 100_000, 100_000], fixed=0.0, each=1.0)
    assert merged_step(clocks, [1, 3]) == pytest.approx(0.05 + 0.34 + 0.4)
    assert merged_step(clocks, [2, 3]) == pytest.approx(0.05 + 0.22 + 0.3 + 0.2)  # the last group waits for the link until .52
    assert merged_step(clocks, [3]) == pytest.approx(0.05 + 0.32 + 0.5)
    silent = clocks_of([50_000, 100_000], fixed=0.0, each=0.0)
    assert merged_step(silent, [1, 2]) == pytest.approx(0.05 + 0.2 + 0.04)


def cuts_of(found: Grouping) -> list[int]:
    stops, stop = [], 0
    for group in found.groups:
        stop += len(group.names)
        stops.append(stop)
    return stops


@pytest.mark.parametrize("groups", [2, 3, 4])
def test_halving_finds_the_least_of_all_cuts_if_costs_are_linear(groups: int) -> None:
    """Check for random profiles that halving finds the cuts with the shortest step. Costs are linear: a frame takes the
    longest of its times on the link, in the MPI thread and for bookkeeping, and here the last two are 0.
    """
    for seed in range(25):
        draw = random.Random(seed)
        profile = replace(random_profile(draw, draw.randint(groups, 9)), host=FREE)
        own = random_candidate(draw, 0)
        curves = replace(own.curves, bookkeeping=NOTHING)
        clocks = StepClocks(profile, [replace(own, curves=curves)], Scenario(draw.randint(1, 4), 1e7, 0.0, 4), RULES)
        count = len(profile.tensors)
        prices = {cuts: merged_step(clocks, [*cuts, count]) for cuts in combinations(range(1, count), groups - 1)}
        for exhaustive in (False, True):
            found = merged(clocks, groups, exhaustive=exhaustive)
            assert merged_step(clocks, cuts_of(found)) == pytest.approx(min(prices.values())), (seed, exhaustive)
            assert found.seconds == pytest.approx(clocks.grouping(cuts_of(found), [0] * groups).seconds)


def test_more_groups_are_taken_while_each_lowers_the_step_by_a_twentieth() -> None:
    """Check that no second group is taken if the passes hide the frames. On a slow link a second group shortens the step by
    a fifth, and a third one by a fifteenth.
    """
    hidden = clocks_of([1000] * 6, fixed=0.0, each=1.0)
    assert len(merged_while_it_gains(hidden).groups) == 1
    slow = clocks_of([100_000] * 6, fixed=0.0, each=1.0)
    steps = [merged_step(slow, cuts_of(merged(slow, groups))) for groups in (1, 2, 3)]
    expected = 1 + sum(after <= 0.95 * before for before, after in pairwise(steps))
    assert len(merged_while_it_gains(slow).groups) == expected > 1
    assert len(merged_while_it_gains(slow, most=1).groups) == 1


def test_fixed_costs_of_a_frame_make_a_second_group_useless() -> None:
    clocks = clocks_of([1000] * 4, fixed=1e6, each=1.0)
    assert merged_step(clocks, cuts_of(merged(clocks, 2))) > merged_step(clocks, [4])
    assert len(merged_while_it_gains(clocks).groups) == 1


def test_more_groups_than_tensors_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="2 tensors cannot form 3 groups"):
        merged(clocks_of([1000, 1000], fixed=0.0, each=1.0), 3)
    assert [len(group.names) for group in merged(clocks_of([1000, 1000], fixed=0.0, each=1.0), 2).groups] == [1, 1]


@pytest.mark.parametrize("count", [1, 2, 3, 10])
def test_the_lowest_of_prices_that_fall_and_rise(count: int) -> None:
    for least in range(count):
        prices = [abs(place - least) + (0.5 if place > least else 0.0) for place in range(count)]
        assert lowest(count, prices.__getitem__) == least
