"""Ways to group tensors: their order, their plans, and the command that compares and saves them."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from psnode.cli import main
from psnode.config import Config
from psnode.config.resolve import resolve
from psnode.errors import ConfigurationError
from psnode.jobs.planning.job_step import StepTime, job_step, step_spans
from psnode.jobs.planning.profile import Profile, SchemeCosts
from psnode.jobs.planning.routing import routed_step
from psnode.jobs.planning.routing.routed_groups import on_routes, routed
from psnode.jobs.planning.scenario import Scenario
from psnode.jobs.planning.search.grouping import CodecCandidate, GroupChoice, planned_costs
from psnode.jobs.planning.search.plan_search import PlanSearch
from psnode.jobs.planning.search.ways import MERGECOMP, MIXED, RULE, SECOPA, Way, Ways, way_table
from psnode.plans.groups import IDENTITY, Tensor
from psnode.plans.plan_file import PlanFile
from psnode.plans.roles import Layout
from psnode.plans.rule import grouping_of, plan_of
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


def with_scheme(profile: Profile, candidates: Sequence[CodecCandidate], config: Config) -> Profile:
    """Return the profile with one scheme, that of `config`: its plan, and the costs of the first candidate."""
    plan = plan_of([Tensor(each.name, each.shape) for each in profile.tensors], resolve(config), config)
    own = replace(planned_costs(plan, profile.tensors, candidates), plan=plan.to_dict(), grouping=grouping_of(config))
    return replace(profile, schemes={candidates[0].flags: own})


@pytest.mark.parametrize("topology", ["star:down=tree", "mesh", "mesh:master=auto", "sharded:servers=2", "gather"])
def test_under_other_topologies_every_way_takes_the_simulated_step_of_its_plan(topology: str) -> None:
    """Check that the figures of a table are those of the graph of all frames on the routes of its plan, and that the rule's
    groups are those of a run.
    """
    for seed in range(4):
        draw = random.Random(seed)
        profile, scenario = random_profile(draw, 6), replace(random_scenario(draw), workers=3)
        candidates = [random_candidate(draw, place) for place in range(3)]
        config = Config(scheme="qsgd", min_compress_bytes=0)
        profile = with_scheme(profile, candidates, config)
        ways = Ways(profile, candidates, scenario, config, topology)
        layout = Layout(3, servers=Config(topology=topology).servers)
        for way in ways.compared():
            plan = ways.plan(way)
            groups = on_routes(profile, planned_costs(plan, profile.tensors, ways.candidates), plan, topology, layout)
            assert way.step == job_step(profile, groups.costs, scenario, groups.routes)
            assert ways.spans(way) == step_spans(profile, groups.costs, scenario, groups.routes)
        assert ways.plan(ways.rule()) == routed(profile, candidates[0].flags, topology, 3).plan


def test_ways_with_too_many_frames_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a table has the ways that can be simulated, and that only too many frames of the rule's own groups are an error.

    Ranks of one machine are not folded, and the rule has one group here, so that of three workers it takes three frames.
    """
    draw = random.Random(5)
    profile, scenario = random_profile(draw, 8), replace(random_scenario(draw), workers=3, shared=True)
    candidates = [random_candidate(draw, place) for place in range(3)]
    config = Config(scheme="qsgd", min_compress_bytes=0)
    ways = Ways(with_scheme(profile, candidates, config), candidates, scenario, config, "star:down=tree")
    every, groups = ways.compared(), len(ways.plan(ways.rule()).groups)
    monkeypatch.setattr(routed_step, "_MOST_FRAMES", 3 * groups)
    found = ways.compared()
    assert RULE in {way.name for way in found}
    assert len(found) < len(every)
    assert all(len(way.costs.groups) <= groups for way in found)
    monkeypatch.setattr(routed_step, "_MOST_FRAMES", 0)
    with pytest.raises(ConfigurationError, match="takes too long to predict under --topology star:down=tree"):
        ways.compared()


def test_in_a_gather_weights_have_the_costs_of_dense() -> None:
    """Check that the search prices updates as the simulation does, without the scheme's downlink."""
    draw = random.Random(6)
    profile, scenario = random_profile(draw, 4), replace(random_scenario(draw), workers=3)
    candidates = [random_candidate(draw, place) for place in range(3)]  # the second one sends gradients as they are
    config = Config(scheme="qsgd", min_compress_bytes=0)
    ways = Ways(with_scheme(profile, candidates, config), candidates, scenario, config, "gather")
    assert [each.curves.update for each in ways.candidates] == [candidates[1].curves.update] * 3
    assert [each.curves.encode for each in ways.candidates] == [each.curves.encode for each in candidates]


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
@pytest.mark.parametrize(
    ("name", "topology"), [("best", "star"), ("mergecomp", "star"), ("secopa", "star"), ("best", "mesh"), ("secopa", "gather")]
)
def test_a_run_follows_the_groups_that_the_command_saves(
    few_steps: None, name: str, topology: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plan.json"
    asked = ["plan", "-n", "2", "--rate", "1mbit", "--groups", name, "--topology", topology, "--save-plan", str(file)]
    assert main([*asked, "--", *OPTIONS, "--scheme", "qsgd"]) == 0
    shown = capsys.readouterr().out
    assert "groups of qsgd" in shown
    assert {RULE, MERGECOMP, SECOPA} <= {line.split("  ")[1] for line in shown.splitlines() if line.startswith("  ")}
    found = PlanFile.load(file)
    assert (found.settings, found.topology) == ({"scheme": "qsgd"}, topology)
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
