"""Rehearsals of groupings: which are measured, and what becomes of their costs."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from psnode.cli import main
from psnode.config import Config
from psnode.config.plain_json import to_json
from psnode.config.resolve import resolve
from psnode.jobs.planning.job_step import job_step
from psnode.jobs.planning.scenario import Scenario
from psnode.jobs.planning.search import rehearsal
from psnode.jobs.planning.search.plan_search import PlanSearch
from psnode.jobs.planning.search.rehearsal import quickest, rehearsal_table, rehearse
from psnode.jobs.planning.search.ways import RULE, Way, Ways
from psnode.plans.groups import Plan
from tests.jobs.planning.search.step_cases import random_candidate, random_profile
from tests.jobs.planning.test_profiling import OPTIONS


@pytest.fixture
def case() -> tuple[PlanSearch, Ways, list[Way]]:
    draw = random.Random(11)
    profile, candidates = random_profile(draw, 8), tuple(random_candidate(draw, place) for place in range(3))
    search = PlanSearch("qsgd", Config(scheme="qsgd", min_compress_bytes=0), candidates, ranks=3)
    ways = search.ways(profile, Scenario(2, 1e7, 1e-3, 4))
    return search, ways, ways.compared()


def test_the_quickest_ways_and_the_rule_are_measured_once(
    case: tuple[PlanSearch, Ways, list[Way]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check the costs and the steps of ways whose measured coding takes longer the quicker they were simulated."""
    search, ways, listed = case
    distinct = list({to_json(ways.plan(way).to_dict()): way for way in reversed(listed)}.values())[::-1]
    expected = [*distinct[:3], *(way for way in distinct[3:] if way.name == RULE)]
    assert len(distinct) > 3
    calls = list[dict[str, Plan]]()

    def measured(config: Config, schemes: Mapping[str, Config], tell: Any, *, plans: Mapping[str, Plan], **named: Any) -> Any:
        assert config is search.config
        assert named == {"ranks": 3, "host": ways.profile.host}
        assert list(schemes) == list(plans)
        calls.append(dict(plans))
        costs, found = {way.name: way.costs for way in listed}, {}
        for place, name in enumerate(plans):
            groups = costs[name].groups  # ready at other times, as in another measurement
            slower = [replace(group, encode=(5.0 - place) / len(groups), ready=7.0, needed=7.0) for group in groups]
            found[name] = replace(costs[name], groups=tuple(slower))
        return SimpleNamespace(schemes=found)

    monkeypatch.setattr(rehearsal, "measure", measured)
    found = rehearse(search, ways, listed)
    assert calls == [{way.name: ways.plan(way) for way in expected}]
    assert [way.name for way in found] == [way.name for way in expected]
    for way, before in zip(found, expected, strict=True):
        assert way.step == job_step(ways.profile, way.costs, Scenario(2, 1e7, 1e-3, 4))
        assert [(group.ready, group.needed) for group in way.costs.groups] == [
            (group.ready, group.needed) for group in before.costs.groups
        ]
    assert min(found, key=lambda way: way.step.seconds).name == expected[-1].name
    assert [line[2:28].strip() for line in rehearsal_table(found, listed)[2:]] == [way.name for way in expected]
    assert [way.name for way in rehearse(search, ways, listed)] == [way.name for way in found]
    assert len(calls) == 1


def test_a_difference_of_less_than_two_percent_does_not_overturn_the_order(case: tuple[PlanSearch, Ways, list[Way]]) -> None:
    _, _, listed = case

    def chosen(*seconds: float) -> int:
        found = [
            replace(way, step=way.step._replace(seconds=each)) for way, each in zip(listed[: len(seconds)], seconds, strict=True)
        ]
        return found.index(quickest(found))

    assert [chosen(1.0, 0.99, 1.1), chosen(1.0, 0.9), chosen(1.05, 1.01, 1.0), chosen(1.0)] == [0, 1, 1, 0]


@pytest.mark.parametrize("settings", [{"small_tensors": "coded"}, {"min_compress_bytes": 64}, {}])
def test_a_plan_that_codes_nothing_is_that_of_dense(settings: dict[str, Any], case: tuple[PlanSearch, Ways, list[Way]]) -> None:
    search, ways, listed = case
    search = replace(search, config=Config(scheme="qsgd", **settings))
    found = search.settings_of(_uncoded(ways.plan(listed[0])))
    assert resolve(found) == resolve(Config(scheme="dense"))


def test_plans_that_the_scheme_cannot_follow_are_not_measured(
    case: tuple[PlanSearch, Ways, list[Way]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check signsgd, which has a learning rate of its own, so that a plan of dense would train differently."""
    search, ways, listed = case
    search = replace(search, name="signsgd", config=Config(scheme="signsgd"))
    bare = _uncoded(ways.plan(listed[0]))
    monkeypatch.setattr(Ways, "plan", lambda self, way: bare)
    monkeypatch.setattr(rehearsal, "measure", lambda *_, **__: pytest.fail("measured"))
    assert rehearse(search, ways, listed) == []


def _uncoded(plan: Plan) -> Plan:
    groups = [
        replace(group, segments=tuple(replace(segment, codec="identity") for segment in group.segments)) for group in plan.groups
    ]
    return Plan(plan.tensors, tuple(groups))


@pytest.mark.usefixtures("few_steps")
def test_the_command_rehearses_the_best_groups_with_real_steps(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["plan", "-n", "2", "--rate", "1mbit", "--groups", "best", "--json", "--", *OPTIONS, "--scheme", "qsgd"]
    assert main(asked) == 0
    printed = capsys.readouterr()
    [rate] = json.loads(printed.out)["results"]
    times = [way["rehearsed"] for way in rate["groups"]]
    assert 1 <= sum(each is not None for each in times) <= 4
    assert times[0] is not None and times[0] > 0
    assert "measuring again: " in printed.err
