"""Ways to group the tensors of a model with made-up costs: the list of ways, and the seconds of their steps, which equal
those of job_step.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from psnode.config.load import load
from psnode.jobs.planning.job_step import job_step
from psnode.jobs.planning.profile import Profile
from psnode.jobs.planning.scenario import Scenario
from psnode.jobs.planning.search.grouping import CodecCandidate
from psnode.jobs.planning.search.ways import EACH, IN_PARTS, MIXED, ONE, OWN, RULE, SECOPA, SIDES, THREE, TWO, Ways
from studies.groupings import STUDY, Options, ways
from studies.harness import page
from tests.jobs.planning.search.step_cases import random_candidate, random_profile

SCENARIO = Scenario(3, 1e8, 2e-4, 4)


@pytest.fixture(scope="module")
def costs() -> tuple[Profile, list[CodecCandidate]]:
    draw = random.Random(11)
    profile = random_profile(draw, 6, mirrored=True)
    large = tuple(replace(each, shape=(20 * each.shape[0], *each.shape[1:])) for each in profile.tensors)
    return replace(profile, tensors=large), [random_candidate(draw, place) for place in range(2)]


def test_every_way_has_its_groups_and_searches_with_more_choices_are_no_slower(
    costs: tuple[Profile, list[CodecCandidate]],
) -> None:
    found = {way.name: way for way in ways(Ways(*costs, SCENARIO, load({"scheme": "qsgd"}, {})))}
    assert list(found) == [ONE, TWO, THREE, EACH, RULE, OWN, MIXED, IN_PARTS, SECOPA, SIDES]
    assert [len(found[name].costs.groups) for name in (ONE, TWO, THREE, EACH)] == [1, 2, 3, 6]
    size = sum(tensor.nbytes // 4 for tensor in costs[0].tensors)
    assert all(sum(group.coded + group.plain for group in way.costs.groups) == size for way in found.values())
    assert all(sum(way.shares(costs[0]).values()) == pytest.approx(float(way.groups is not None)) for way in found.values())
    steps = {name: job_step(costs[0], way.costs, SCENARIO).seconds for name, way in found.items()}
    assert steps == {name: way.step.seconds for name, way in found.items()}
    assert steps[OWN] >= steps[MIXED] >= steps[IN_PARTS]


def test_a_scheme_that_shares_its_plan_with_no_codec_has_no_selective_compression(
    costs: tuple[Profile, list[CodecCandidate]],
) -> None:
    found = [way.name for way in ways(Ways(costs[0], costs[1][:1], SCENARIO, load({"scheme": "qsgd"}, {})))]
    assert found == [ONE, TWO, THREE, EACH, RULE, OWN, MIXED, IN_PARTS]


def test_the_page_has_a_table_for_each_network_and_rate() -> None:
    row = {
        "network": "N", "rate": "1gbit", "title": "N, 1gbit", "way": "one group", "groups": 1, "seconds": 0.25, "modelled": None,
        "passes": 0.1, "sent": 2_000_000, "codecs": "75 % topk, 25 % dense --codec bf16",
    }  # fmt: skip
    result = {"date": "today", "cpu": "a processor", "cores": 2, **vars(Options()), "rows": [row, {**row, "title": "N, 10gbit"}]}
    text = page(STUDY, result)
    assert text.count("## N, ") == 2
    assert "| one group | 1 | 250.0 | 2.50 |  | 2.000 | 75 % topk, 25 % dense --codec bf16 |" in text
    assert "4 workers under topk, on hosts of 4 cores; batches of 16." in text
