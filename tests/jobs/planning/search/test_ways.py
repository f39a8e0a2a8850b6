"""Ways to group tensors: their order, their plans, and the command that compares and saves them."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from psnode.cli import main
from psnode.config import Config
from psnode.config.resolve import resolve
from psnode.errors import ConfigurationError
from psnode.jobs.planning.search.ways import MERGECOMP, MIXED, NAMES, RULE, SECOPA, Ways, way_table
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


def test_names_without_a_meaning_are_refused() -> None:
    draw = random.Random(1)
    ways = Ways(random_profile(draw, 3), [random_candidate(draw, 0)], random_scenario(draw), Config(scheme="qsgd"))
    assert [ways.named(name).name for name in NAMES[:2]] == [RULE, MERGECOMP]
    with pytest.raises(ConfigurationError, match="--groups secopa has no meaning here"):
        ways.named("secopa")
    assert ways.mergecomp(4) is None


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
    ):
        assert main(["plan", "-n", "2", "--groups", "best", *words]) == 2
        assert said in capsys.readouterr().err
