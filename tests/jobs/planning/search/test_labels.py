"""The search by labels, compared with all groupings under all codecs, which a slower model of the same stages prices."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np
import pytest

from psnode.errors import ConfigurationError
from psnode.jobs.planning.job_step import job_step
from psnode.jobs.planning.profile import Profile, TensorTimes
from psnode.jobs.planning.scenario import GOODPUT, Scenario
from psnode.jobs.planning.search.grouping import CodecCandidate, Grouping, SmallTensorRules, grouped_plan, planned_costs
from psnode.jobs.planning.search.labels import searched, undominated
from psnode.jobs.planning.search.stage_loads import StageLoads
from psnode.jobs.planning.search.step_clocks import StepClocks, joined_small
from psnode.plans.groups import Tensor
from tests.jobs.planning.search.step_cases import random_candidate, random_profile, random_scenario

RULES = SmallTensorRules(min_compress_bytes=0)


class Passed(NamedTuple):
    """A group that has passed all stages: the seconds at which its weights have arrived, its own work, and the times of its
    use.
    """

    home: float
    apply: float
    needed: float
    last_needed: float
    extra: float
    number: int


class Slow:
    """The stages of the step model, computed group by group in plain numbers."""

    def __init__(
        self, profile: Profile, candidates: list[CodecCandidate], scenario: Scenario, loads: StageLoads | None = None
    ) -> None:
        self.profile, self.candidates, self.scenario = profile, candidates, scenario
        workers = scenario.workers
        self.loads = loads or StageLoads(gradients=workers, inward=workers, outward=workers, roots=1.0, copies=1)
        self.lanes = min(4, scenario.cores - 1) * self.loads.roots

    def link(self, before: float, begin: float, frames: float) -> tuple[float, float]:
        """Return when `frames` seconds of frames have passed the links of all roots, and when these links are free again."""
        roots = self.loads.roots
        free = max(before, begin) + frames / roots
        passed = max(free, begin + frames)
        return passed, max(free, passed - frames + frames / roots)

    def codes(self, tensor: TensorTimes, candidate: CodecCandidate) -> bool:
        return len(tensor.shape) > 1 and candidate.codec != "identity"

    def seconds(self, stops: list[int], chosen: list[int], parts: list[int] | None = None) -> tuple[float, float, list[Passed]]:
        """Return the seconds of the step, the error, and the groups' parts after all stages."""
        workers, host, half, loads = self.scenario.workers, self.profile.host, self.scenario.round_trip / 2, self.loads
        coder = link_in = lanes = link_out = work = error = 0.0
        groups: list[Passed] = []
        size = sum(tensor.nbytes // 4 for tensor in self.profile.tensors)
        wire = 8 / self.scenario.rate / GOODPUT if self.scenario.rate else 0.0
        counts = parts or [1] * len(stops)
        groups_of = zip(pairwise([0, *stops]), chosen, counts, strict=True)
        pieces = [(number, *each) for number, each in enumerate(groups_of) for _ in range(each[2])]
        for number, (start, stop), place, count in pieces:
            inside, candidate = self.profile.tensors[start:stop], self.candidates[place]
            coded = sum(each.nbytes // 4 for each in inside if self.codes(each, candidate)) / count
            plain = sum(each.nbytes // 4 for each in inside) / count - coded
            cost = {name: line.fixed + line.coded * coded + line.plain * plain for name, line in vars(candidate.curves).items()}
            up, down = cost["up"], cost["down"]
            coder = max(coder, inside[-1].ready) + cost["encode"]
            frame = max(up * wire, host.message + up * host.receive, cost["bookkeeping"])
            first = max(link_in, coder) + min(1, loads.inward) * frame + half
            came, link_in = self.link(link_in, coder, loads.inward * frame)
            last = came + half
            serial = loads.gradients * cost["decode"] + cost["update"]
            clock = max(lanes, first) + serial / self.lanes
            done = max(clock, first + serial, last + cost["decode"] + cost["update"])
            lanes = max(clock, done - serial + serial / self.lanes)
            went, link_out = self.link(link_out, done, loads.outward * max(down * wire, host.message + down * host.send))
            needs = [each.needed for each in inside]
            groups.append(Passed(went + half, cost["apply"], min(needs), max(needs), cost["extra"], number))
            moved = 4 * host.message + (up + down) * (host.send + host.receive)
            decoded = loads.copies * cost["decode"]
            each = cost["encode"] + cost["apply"] + cost["extra"] + decoded + moved + cost["bookkeeping"]
            work += workers * each + loads.copies * cost["update"]
            error += candidate.error * coded / size
        used = sum(each.apply + each.extra for each in groups)
        found = max(coder, self.profile.backward) + self.profile.forward + used
        for place, group in enumerate(groups):
            later = used - sum(each.apply + each.extra for each in groups[: place + 1])
            for other in groups[place + 1 :]:
                earlier = [each.needed for each in groups if each.number < other.number]
                if other.last_needed <= min(earlier, default=np.inf):
                    later -= other.apply + other.extra
            own = sum(each.apply + each.extra for each in groups[: place + 1]) + later
            found = max(found, group.home + own + self.profile.forward - group.needed)
        if self.scenario.shared:
            # a report and the message that the version is complete have two ends each
            passes = workers * (self.profile.forward + self.profile.backward + 4 * host.message)
            found = max(found, (passes + work) / self.scenario.cores / host.crowded)
        return found, error, groups

    def all(self, parts: tuple[int, ...] = (1,)) -> Iterator[tuple[float, float, list[int], list[int], list[int]]]:
        """Yield seconds and error of every grouping under every choice of candidates and of `parts`."""
        count = len(self.profile.tensors)
        bare = any(candidate.codec == "identity" for candidate in self.candidates)

        def go(
            stops: list[int], chosen: list[int], counts: list[int]
        ) -> Iterator[tuple[float, float, list[int], list[int], list[int]]]:
            start = stops[-1] if stops else 0
            if start == count:
                yield *self.seconds(stops, chosen, counts)[:2], stops, chosen, counts
                return
            for stop in range(start + 1, count + 1):
                for (place, candidate), many in product(enumerate(self.candidates), parts):
                    inside = self.profile.tensors[start:stop]
                    if many > 1 and sum(each.nbytes // 4 for each in inside) < 4 * 4096 * many:
                        continue
                    if candidate.codec != "identity" and bare and not any(self.codes(each, candidate) for each in inside):
                        continue  # the same group as that of the candidate that codes nothing
                    yield from go([*stops, stop], [*chosen, place], [*counts, many])

        yield from go([], [], [])


def case(seed: int) -> tuple[random.Random, Profile, list[CodecCandidate], Scenario]:
    draw = random.Random(seed)
    count, choices = draw.choice([(2, 3), (3, 3), (4, 3), (5, 2), (5, 3), (6, 2)])
    return draw, random_profile(draw, count), [random_candidate(draw, place) for place in range(choices)], random_scenario(draw)


def shape(found: Grouping) -> tuple[list[int], list[int], list[int]]:
    stops = np.cumsum([len(group.names) for group in found.groups]).tolist()
    return stops, [int(group.flags.split()[1]) for group in found.groups], [group.parts for group in found.groups]


@pytest.mark.parametrize("start", range(0, 120, 20))
def test_without_a_grid_the_answer_is_the_best_of_all_groupings(start: int) -> None:
    for seed in range(start, start + 20):
        draw, profile, candidates, scenario = case(seed)
        slow = Slow(profile, candidates, scenario)
        every = list(slow.all())
        own = slow.seconds([len(profile.tensors)], [0])[1]
        budget = draw.choice([None, own * draw.random(), own * draw.random()])
        limit = (own if budget is None else budget) * (1 + 1e-9)
        best = min(seconds for seconds, error, *_ in every if error <= limit)
        found = searched(StepClocks(profile, candidates, scenario, RULES), budget=budget, grid=0.0, least_node=0)[0]
        assert found.seconds == pytest.approx(best, rel=1e-9), seed
        seconds, error, _ = slow.seconds(*shape(found))
        assert seconds == pytest.approx(found.seconds, rel=1e-9), seed
        assert error == pytest.approx(found.error, abs=1e-12), seed


@pytest.mark.parametrize("start", range(0, 60, 20))
def test_under_other_topologies_the_answer_is_the_best_of_all_groupings(start: int) -> None:
    for seed in range(start, start + 20):
        draw, profile, candidates, scenario = case(7000 + seed)
        workers = scenario.workers
        loads = draw.choice(
            [
                StageLoads(workers, workers - 1, workers - 1, roots=float(workers)),
                StageLoads(workers, workers, workers, roots=1 + draw.random()),
                StageLoads(workers, workers - 1, 0, copies=workers),
                StageLoads(workers, workers, min(2, workers)),
            ]
        )
        best = min(seconds for seconds, *_ in Slow(profile, candidates, scenario, loads).all())
        model = StepClocks(profile, candidates, scenario, RULES, loads=loads)
        found = searched(model, budget=1.0, grid=0.0, least_node=0)[0]
        assert found.seconds == pytest.approx(best, rel=1e-9), seed


@pytest.mark.parametrize(("seed", "count", "choices"), [(500, 7, 2), (501, 7, 2), (502, 7, 3)])
def test_seven_tensors(seed: int, count: int, choices: int) -> None:
    draw = random.Random(seed)
    profile, candidates = random_profile(draw, count), [random_candidate(draw, place) for place in range(choices)]
    scenario = random_scenario(draw)
    best = min(seconds for seconds, *_ in Slow(profile, candidates, scenario).all())
    found = searched(StepClocks(profile, candidates, scenario, RULES), budget=1.0, grid=0.0, least_node=0)[0]
    assert found.seconds == pytest.approx(best, rel=1e-9)


def test_parts_of_groups_are_searched_as_well() -> None:
    several = 0
    for seed in range(300, 320):
        draw = random.Random(seed)
        profile = random_profile(draw, draw.randint(2, 3))
        large = tuple(replace(each, shape=(40 * each.shape[0], *each.shape[1:])) for each in profile.tensors)
        profile, candidates = replace(profile, tensors=large), [random_candidate(draw, place) for place in range(2)]
        scenario = random_scenario(draw)
        best = min(seconds for seconds, *_ in Slow(profile, candidates, scenario).all((1, 2, 3)))
        clocks = StepClocks(profile, candidates, scenario, RULES)
        found = searched(clocks, budget=1.0, grid=0.0, parts=(1, 2, 3))[0]
        assert found.seconds == pytest.approx(best, rel=1e-9), seed
        assert Slow(profile, candidates, scenario).seconds(*shape(found))[0] == pytest.approx(best, rel=1e-9), seed
        several += any(group.parts > 1 for group in found.groups)
    assert several >= 5


@pytest.mark.parametrize("grid", [0.005, 0.05])
def test_with_a_grid_the_answer_is_within_two_steps_for_each_group_of_the_best(grid: int) -> None:
    missed = 0
    for seed in range(200, 230):
        _, profile, candidates, scenario = case(seed)
        seconds, _, stops, *_ = min(Slow(profile, candidates, scenario).all())
        found = searched(StepClocks(profile, candidates, scenario, RULES), budget=1.0, grid=grid, least_node=0)[0]
        assert found.seconds >= seconds * (1 - 1e-9)
        assert found.seconds <= seconds * (1 + 2 * len(stops) * grid), seed  # a step is this part of at most the best step
        missed += found.seconds > seconds * (1 + 1e-9)
    assert missed <= 15


def test_answers_after_the_first_are_other_groupings_and_no_quicker() -> None:
    _, profile, candidates, scenario = case(4)
    found = searched(StepClocks(profile, candidates, scenario, RULES), best=5, grid=0.0, least_node=0)
    assert len({grouping.groups for grouping in found}) == len(found) > 1
    assert [each.seconds for each in found] == sorted(each.seconds for each in found)


def test_a_budget_that_no_candidate_keeps_is_refused() -> None:
    draw = random.Random(1)
    profile = random_profile(draw, 3)
    profile = replace(profile, tensors=tuple(replace(each, shape=(40, 40)) for each in profile.tensors))
    model = StepClocks(profile, [random_candidate(draw, 0)], random_scenario(draw), RULES)
    with pytest.raises(ConfigurationError, match="budget"):
        searched(model, budget=0.1)


def walked(profile: Profile, coded: float, groups: list[Passed]) -> float:
    """Return the end of a forward pass that meets the groups in the order of their first use and applies each at once."""
    now, place = max(coded, profile.backward), 0.0
    for group in sorted(groups, key=lambda group: group.needed):
        now = max(now + group.needed - place, group.home) + group.apply + group.extra
        place = group.needed
    return now + profile.forward - place


@pytest.mark.parametrize("mirrored", [True, False])
def test_the_forward_pass_is_never_too_short_and_exact_if_uses_mirror_gradients(mirrored: bool) -> None:
    for seed in range(40):
        draw = random.Random(seed)
        profile = random_profile(draw, 5, mirrored=mirrored)
        candidates = [random_candidate(draw, place) for place in range(2)]
        scenario = replace(random_scenario(draw), shared=False)
        model, slow = StepClocks(profile, candidates, scenario, RULES), Slow(profile, candidates, scenario)
        stops = sorted({*draw.sample(range(1, 5), draw.randint(0, 4)), 5})
        chosen, parts = [draw.randrange(2) for _ in stops], [draw.randint(1, 3) for _ in stops]
        label = model.along(stops, chosen, parts)
        end = walked(profile, float(label[0, 0]), slow.seconds(stops, chosen, parts)[2])
        assert float(model.seconds(label)[0]) >= end - 1e-12, seed
        label = model.along(stops, chosen)
        end = walked(profile, float(label[0, 0]), slow.seconds(stops, chosen)[2])
        assert float(model.seconds(label)[0]) >= end - 1e-12, seed
        if mirrored:
            assert float(model.seconds(label)[0]) == pytest.approx(end), seed


def test_one_group_on_a_slow_link_takes_the_simulated_step() -> None:
    """Compare the modelled step of one group with the simulated one: the stages follow one another, except that frames are
    decoded as they arrive.
    """
    draw = random.Random(3)
    profile, candidates = random_profile(draw, 3, mirrored=True), [random_candidate(draw, 1)]
    scenario = Scenario(3, 1e6, 1e-3, 4)
    found = StepClocks(profile, candidates, scenario, RULES).grouping([3], [0])
    tensors = [Tensor(each.name, each.shape) for each in profile.tensors]
    plan = grouped_plan(tensors, found.groups, {each.flags: each.codec for each in candidates}, RULES)
    costs = planned_costs(plan, profile.tensors, candidates)
    assert found.seconds == pytest.approx(job_step(profile, costs, scenario).seconds, rel=0.02)


def test_small_tensors_join_the_next_large_one_and_those_at_the_end_the_last() -> None:
    sizes = (5, 5, 100, 5, 200, 100, 5)
    tensors = [TensorTimes((size,), 0.0, 0.0) for size in sizes]
    assert joined_small(tensors, 100) == [3, 5, 7]
    assert joined_small(tensors, 101) == [7]
    assert joined_small(tensors, 0) == [1, 2, 3, 4, 5, 6, 7]
    assert joined_small(tensors, 1000) == [7]


def test_rows_that_others_dominate_are_found_by_comparing_all_pairs() -> None:
    rows = np.random.default_rng(2).integers(0, 5, (300, 3)).astype(float)
    kept = rows[undominated(rows)]
    unique = np.unique(rows, axis=0)
    front = [row for row in unique if not any((other <= row).all() and (other < row).any() for other in unique)]
    assert sorted(map(tuple, kept)) == sorted(map(tuple, front))
