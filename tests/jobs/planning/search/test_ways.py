"""Ways to group tensors: their order, their plans, and the command that compares and saves them."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from psnode.cli import main
from psnode.config import Config
from psnode.config.resolve import resolve
from psnode.errors import ConfigurationError
from psnode.jobs.planning.job_step import StepTime
from psnode.jobs.planning.profile import SchemeCosts
from psnode.jobs.planning.scenario import Scenario
from psnode.jobs.planning.search.grouping import GroupChoice
from psnode.jobs.planning.search.plan_search import PlanSearch
from psnode.jobs.planning.search.ways import MERGECOMP, MIXED, RULE, SECOPA, Way, Ways, way_table
from psnode.plans.groups import IDENTITY
from psnode.plans.plan_file import PlanFile
from tests.jobs.planning.search.step_cases import random_candidate, random_profile, random_scenario
from tests.jobs.planning.test_profiling import OPTIONS


@pytest.mark.parametrize("seed", range(12))
def test_every_way_has_a_plan_with_its_groups_and_its_codecs(seed: int) -> None:
    draw = random.Random(seed)
    profile, scenario = random_profile(draw, draw.randint(3, 9)), random_scenario(draw)
    candidates = [random_candidate(draw, place) for place in range(3)]
    config = Config(scheme="qsgd", min_compress_bytes=0)
    ways = Ways(profile, candidates, scenario, config)
    found = ways.compared()
    seconds = [way.step.seconds for way in found]
    assert seconds == sorted(seconds)
    assert {RULE, MERGECOMP, SECOPA, MIXED} <= {way.name for way in found}
    for way in (*found, ways.each_tensor()):
        plan = ways.plan(way)
        assert {tensor.name for tensor in plan.tensors} == {tensor.name for tensor in profile.tensors}
        assert len(plan.groups) == len(way.costs.groups)
        coded = [sum(each.size for each in group.segments if each.codec != IDENTITY) for group in plan.groups]
        assert coded == [group.coded for group in way.costs.groups]
        asked = {candidate.flags: candidate.codec for candidate in candidates}
        allowed = {IDENTITY, *(asked[group.flags] for group in way.groups)} if way.groups else {IDENTITY, resolve(config).codec}
        assert {segment.codec for segment in plan.segments} <= allowed
        assert sum(way.shares(profile).values()) == pytest.approx(1.0 if way.groups else 0.0)
    assert len(way_table("qsgd", found, profile)) == len(found) + 2


def test_a_search_is_never_slower_than_a_narrower_one() -> None:
    for seed in range(6):
        draw = random.Random(100 + seed)
        profile, scenario = random_profile(draw, 6), random_scenario(draw)
        candidates = [random_candidate(draw, place) for place in range(3)]
        seconds = [way.step.seconds for way in Ways(profile, candidates, scenario, Config(scheme="qsgd")).searched()]
        assert len(seconds) == 3
        assert seconds == sorted(seconds, reverse=True)


@pytest.mark.parametrize(
    ("codec", "settings"),
    [
        ("svd:rank=2", {"scheme": "atomo"}),  # takes tensors one by one
        ("scaledsign", {"scheme": "efsignsgd"}),  # has one scale for a tensor
        ("qsgd:levels=15,bucket=512", {"scheme": "qsgd", "optimizer": "adafactor"}),  # updates whole tensors
        ("qsgd:levels=15,bucket=512", {"scheme": "qsgd"}),
    ],
)
def test_parts_that_no_plan_has_are_not_priced(codec: str, settings: dict[str, str]) -> None:
    """Check that the priced groups are those of the plan: convolutions of 36,864 coordinates cannot be cut into eight parts
    of multiples of 4096.
    """
    draw = random.Random(7)
    profile = random_profile(draw, 6)
    large = tuple(replace(each, shape=(64, 64, 3, 3)) for each in profile.tensors)
    profile = replace(profile, tensors=large)
    candidates = [replace(random_candidate(draw, 0), codec=codec), random_candidate(draw, 1)]
    ways = Ways(profile, candidates, Scenario(4, 1e8, 2e-4, 4), Config(**settings))
    for way in ways.compared():
        plan = ways.plan(way)
        assert [group.coded + group.plain for group in way.costs.groups] == [group.size for group in plan.groups]


def test_groups_that_code_nothing_are_those_of_dense_if_it_trains_alike() -> None:
    draw = random.Random(2)
    profile, scenario = random_profile(draw, 4), Scenario(2, 1e9, 1e-4, 4)
    candidates = [replace(random_candidate(draw, 0), codec="topk:ratio=0.1"), random_candidate(draw, 1)]
    groups = tuple(GroupChoice((each.name,), candidates[1].flags) for each in profile.tensors)
    bare = Way("bare", groups, SchemeCosts((), 0, 0, lossy=False), StepTime(0.1, {}, 0.5))
    for scheme, problem in (("qsgd", ""), ("signsgd", "plan with --scheme dense")):
        search = PlanSearch(scheme, Config(scheme=scheme), tuple(candidates))
        ways = search.ways(profile, scenario)
        if problem:
            with pytest.raises(ConfigurationError, match=problem):
                search.file(ways, bare, 2, "a guess")
        else:
            assert search.file(ways, bare, 2, "a guess").settings == {"scheme": "dense"}


@pytest.mark.long
@pytest.mark.parametrize("name", ["best", "mergecomp", "secopa"])
def test_a_run_follows_the_groups_that_the_command_saves(
    few_steps: None, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plan.json"
    asked = ["plan", "-n", "2", "--rate", "1mbit", "--groups", name, "--save-plan", str(file)]
    assert main([*asked, "--", *OPTIONS, "--scheme", "qsgd"]) == 0
    shown = capsys.readouterr().out
    assert "groups of qsgd" in shown
    assert {RULE, MERGECOMP, SECOPA} <= {line.split("  ")[1] for line in shown.splitlines() if line.startswith("  ")}
    found = PlanFile.load(file)
    assert found.settings == {"scheme": "qsgd"}
    assert found.prediction is not None
    train = ["train", "--local", "2", *OPTIONS, "--plan", str(file), "--max-steps", "8", "--train-dir", str(tmp_path / "run")]
    assert main([*train, "--no-tensorboard", "--quiet"]) == 0
    assert json.loads((tmp_path / "run" / "config.json").read_bytes())["plan"] == found.plan.to_dict()
    assert json.loads((tmp_path / "run" / "summary.json").read_bytes())["prediction"]["step"] == found.prediction.step


def test_groups_need_a_measurement_of_one_scheme(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (["--profile", str(tmp_path / "p.json")], "--profile measures nothing"),
        (["--scheme", "topk"], "--groups is about the scheme of the options"),
        (["--groups", "secopa", "--", *OPTIONS, "--scheme", "dense"], "--groups secopa has no meaning here"),
        (["--round-trip", "nan"], "nan is not a finite number"),
    ):
        assert main(["plan", "-n", "2", "--groups", "best", *words]) == 2
        assert said in capsys.readouterr().err
