"""`psnode plan --from RUN`: its table, its JSON, the files that it saves, and options that it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from psnode.cli import main
from psnode.config import Config
from psnode.jobs.planning import profiling
from psnode.jobs.planning.profile import Profile
from psnode.jobs.planning.refitting.finished_run import FinishedRun
from psnode.jobs.planning.refitting.profile_refit import refit
from psnode.jobs.planning.scenario import GOODPUT, Scenario
from psnode.plans.plan_file import PlanFile
from tests.jobs.planning.refitting.run_cases import QSGD, make_run, plan_of_codecs, profile

PLANNED = {"step": 1.2, "workers": 3, "source": "psnode plan, 1mbit", "binds": "link"}
LINKS = {"round_trip": 0.004, "up": 1e5 * GOODPUT, "down": 2e5}  # .8 Mbit/s
ONE = plan_of_codecs((QSGD, QSGD))


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    profile().save(tmp_path / "profile.json")
    run = make_run(tmp_path / "run", more={"prediction": PLANNED, "links": LINKS})
    return ["plan", "--from", str(run), "--profile", str(tmp_path / "profile.json")]


def test_predicted_and_measured_figures_stand_beside_each_other(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[3 : lines.index("3 workers, 800 kbit/s")])) <= 80
    rows = {line[2:28].strip(): line[28:].split() for line in lines if line.startswith("  ")}
    assert lines[2].endswith("run: qsgd, 3 workers, medians of 12 steps")
    assert rows["passes of a worker"] == ["302", "ms", "604", "ms", "+100.0", "%"]
    assert rows["coding on a worker"] == ["4.00", "ms", "12.0", "ms", "+200.0", "%"]
    assert rows["decoding, of all workers"] == ["6.00", "ms", "24.0", "ms", "+300.0", "%"]
    assert rows["update, coding of weights"] == ["6.00", "ms", "30.0", "ms", "+400.0", "%"]
    assert rows["sent by a worker"] == ["2.00", "kB", "3.00", "kB", "+50.0", "%"]
    assert rows["received by a worker"] == ["1.00", "kB", "0.50", "kB", "-50.0", "%"]
    assert rows["step, in the run's record"] == ["1,200", "ms", "1,500", "ms", "+25.0", "%"]
    assert "links         carry 800 kbit/s, as the run measured them" in lines
    assert "3 workers, 800 kbit/s" in lines
    assert any(line.startswith("-> ") for line in lines)


def test_all_figures_are_in_the_json(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Check the JSON of a command that also predicts other numbers of workers and other rates from the run."""
    assert main([*words, "-n", "5", "--rate", "1gbit", "--rate", "none", "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (found["workers"], [each["rate"] for each in found["results"]]) == (5, ["1gbit", "none"])
    assert found["passes"] == pytest.approx(0.6)
    told = found["run"]
    assert (told["scheme"], told["workers"], told["steps"], told["rate_is"]) == ("qsgd", 3, 12, "measured")
    assert told["rate"] == pytest.approx(8e5)
    assert told["planned"] == {**PLANNED, "measured": 1.5, "off": pytest.approx(0.25)}
    assert told["measured"]["step"] == 1.5
    assert told["off"]["decode"] == pytest.approx(3.0)
    assert told["off"]["step"] == pytest.approx(1.5 / told["predicted"]["step"] - 1)
    assert told["refitted"]["update"] == pytest.approx(0.03)


def test_the_refitted_profile_is_saved_and_answers_alone(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    run, file, saved = Path(words[2]), Path(words[4]), Path(words[4]).with_name("new.json")
    assert main([*words, "--rate", "1mbit", "--save-profile", str(saved), "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    expected = refit(Profile.load(file), FinishedRun.read(run), Scenario(3, 1e6, 0.004, 16), given=True).profile
    assert Profile.load(saved).schemes == expected.schemes
    assert main(["plan", "-n", "3", "--rate", "1mbit", "--round-trip", "4", "--profile", str(saved), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"] == first["results"]
    assert first["run"]["rate_is"] == "given"


def test_a_saved_plan_has_the_groups_of_the_run_and_the_refitted_step(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that the saved plan has the one group of the run, where the profile has two, and the refitted step."""
    run = make_run(tmp_path / "other", plan=ONE, more={"links": LINKS})
    assert main(["plan", "--from", str(run), *words[3:], "--save-plan", str(tmp_path / "plan.json"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    plan = PlanFile.load(tmp_path / "plan.json")
    assert (plan.settings, plan.plan) == ({"scheme": "qsgd"}, ONE)
    assert plan.prediction is not None
    assert plan.prediction.source == "psnode plan --from other, 800 kbit/s"
    assert plan.prediction.step == next(row["seconds"] for row in found["results"][0]["rows"] if row["name"] == "qsgd")
    assert plan.prediction.step == found["run"]["refitted"]["step"]


def test_schemes_that_the_topology_refuses_are_left_out_with_a_note(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    own = profile()
    coded = replace(own.schemes["topk"], settings={"scheme": "topk", "downlink": "qsgd"})
    replace(own, schemes={**own.schemes, "topk": coded}).save(Path(words[4]))
    run = make_run(Path(words[2]).with_name("gathered"), topology="gather", more={"links": LINKS})
    assert main(["plan", "--from", str(run), *words[3:]]) == 0
    told = capsys.readouterr()
    assert "note: --topology gather: refused, or too many frames to predict: topk" in told.err
    assert "gathered: qsgd, 3 workers, --topology gather, medians of" in told.out


def test_the_step_of_a_run_under_another_topology_is_drawn(words: list[str], tmp_path: Path) -> None:
    run = make_run(Path(words[2]).with_name("mesh"), topology="mesh", more={"links": LINKS})
    assert main(["plan", "--from", str(run), *words[3:], "--plot", str(tmp_path / "step.svg")]) == 0
    assert "A predicted step" in (tmp_path / "step.svg").read_text()


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Config, list[str]]]:
    """Return a list that gets the settings and schemes of every measurement. A measurement returns the profile of run_cases."""
    seen: list[tuple[Config, list[str]]] = []

    def measure(config: Config, schemes: Any, tell: Any) -> Profile:
        seen.append((config, list(schemes)))
        return profile()

    monkeypatch.setattr(profiling, "measure", measure)
    return seen


def test_a_size_of_groups_that_follows_from_the_workers_is_not_measured(
    tmp_path: Path, measured: list[tuple[Config, list[str]]]
) -> None:
    """Check that a group size of 64 KiB in the run's record is not used for the measurement: this size, the least one,
    follows from the number of workers. A size of 4000 bytes is used.
    """
    for size in (65536, 4000):
        run = make_run(tmp_path / str(size), topology="mesh", group_bytes=size, more={"links": LINKS})
        assert main(["plan", "--from", str(run)]) == 0
    assert [config.group_bytes for config, _ in measured] == [0, 4000]


def test_predictions_are_for_the_topology_of_the_run(
    tmp_path: Path, measured: list[tuple[Config, list[str]]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that predictions are for the run's mesh. The model is measured under the usual topology, with a worker and its
    master in one process.
    """
    run = make_run(tmp_path / "run", topology="mesh", more={"links": LINKS})
    assert main(["plan", "--from", str(run), "--save-plan", str(tmp_path / "plan.json"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [config.topology for config, _ in measured] == ["star"]
    assert {row["topology"] for row in found["results"][0]["rows"] if not row["peer"]} == {"mesh"}
    assert PlanFile.load(tmp_path / "plan.json").topology == "mesh"


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (["--groups", "best"], "leave out --groups and the options of train"),
        (["--", "--network", "LeNet"], "leave out --groups and the options of train"),
        (["--scheme", "topk"], "--profile measures nothing: leave out --scheme"),
        (["--rate", "1mbit", "--rate", "2mbit", "--save-plan", "plan.json"], "--save-plan needs one --rate"),
    ],
)
def test_options_that_contradict_a_run_are_refused(
    more: list[str], problem: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, *more]) == 2
    assert problem in capsys.readouterr().err


def test_without_a_run_the_number_of_workers_is_needed(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *words[3:]]) == 2
    assert "-n is missing" in capsys.readouterr().err


def test_without_a_profile_the_model_is_measured_as_the_run_was_configured(
    tmp_path: Path, measured: list[tuple[Config, list[str]]], capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "run", batch_size=24, local=3, overlap=False, more={"links": LINKS})
    assert main(["plan", "--from", str(run), "--scheme", "topk"]) == 0
    [(config, schemes)] = measured
    assert (config.network, config.batch_size, config.scheme) == ("LeNet", 24, "qsgd")
    assert (config.local, config.plan, config.overlap) == (None, "rule", True)
    assert schemes == ["qsgd", "dense", "bf16", "topk"]
    assert "qsgd, 3 workers, medians of 12 steps" in capsys.readouterr().out


def test_code_that_a_run_names_is_not_executed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "run", task=f"{tmp_path / 'task.py'}:Mine")
    (tmp_path / "task.py").write_text("raise RuntimeError('executed')")
    assert main(["plan", "--from", str(run)]) == 2
    told = capsys.readouterr().err
    assert f"would execute --task {tmp_path / 'task.py'}:Mine" in told
    assert "--profile" in told
