"""The options of `psnode plan` about topologies: tables side by side, and lines of refusal."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from psnode.cli import main
from psnode.config import Config
from psnode.errors import ConfigurationError
from psnode.exchange.routes.topologies import COMPARED
from psnode.jobs.planning import profiling
from psnode.jobs.planning.forecast import forecasts
from psnode.jobs.planning.profile import Profile
from psnode.jobs.planning.routing.routed_groups import possible
from psnode.jobs.planning.scenario import Scenario
from psnode.plans.plan_file import PlanFile
from tests.jobs.planning.refitting.run_cases import make_run, profile


def test_auto_has_a_row_for_every_scheme_and_topology_and_others_have_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile().save(tmp_path / "profile.json")
    asked = ["plan", "-n", "3", "--rate", "1mbit", "--profile", str(tmp_path / "profile.json")]
    found = {}
    topologies = ["star", "star:down=tree", "mesh", "mesh:master=auto", "gather"]
    for words in ([], *(["--topology", each] for each in (*topologies, "auto"))):
        assert main([*asked, *words, "--json"]) == 0
        [result] = json.loads(capsys.readouterr().out)["results"]
        found[" ".join(words[1:])] = {(row["name"], row["topology"]): row["seconds"] for row in result["rows"] if not row["peer"]}
    assert found[""] == found["star"]
    assert {topology for _, topology in found["mesh"]} == {"mesh"}
    assert found["auto"] == {row: seconds for each in topologies for row, seconds in found[each].items()}
    assert len(found["auto"]) == 15
    assert main([*asked, "--topology", "auto"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("  qsgd, ") for line in lines) == 5
    assert any(line.startswith("-> qsgd takes ") and " of psnode train; " in line for line in lines)
    assert main([*asked, "--topology", "mesh"]) == 0
    assert "3 workers, 1mbit, --topology mesh" in capsys.readouterr().out.splitlines()


def test_auto_in_the_options_of_train_compares_what_a_job_would_compare(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["plan", "-n", "2", "--rate", "1mbit", "--scheme", "qsgd", "--json", "--", "--topology", "auto", "--spares", "1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(profiling, "measure", lambda *_, **__: profile())
        assert main(asked) == 0
    told = capsys.readouterr()
    rows = json.loads(told.out)["results"][0]["rows"]
    assert {row["topology"] for row in rows if not row["peer"]} == {"star", "star:down=tree"}
    assert "note: left out: --spares" in told.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--topology", "net"], "--topology"),
        (["--topology", "rings"], "--topology"),
    ],
)
def test_what_a_topology_lacks_is_told_in_one_line(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile().save(tmp_path / "profile.json")
    assert main(["plan", "-n", "2", "--rate", "1mbit", "--profile", str(tmp_path / "profile.json"), *words]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert said in line


MODEL = ["--network", "FC", "--dataset", "synthetic", "--synthetic-shape", "1,8,8", "--batch-size", "4", "--threads", "1"]


@pytest.mark.parametrize("topology", ["mesh", "gather", "star:down=tree"])
def test_the_step_of_a_topology_is_drawn_and_saved(topology: str, tmp_path: Path) -> None:
    profile().save(tmp_path / "profile.json")
    plan, drawing = tmp_path / "plan.json", tmp_path / "step.svg"
    asked = ["plan", "-n", "3", "--rate", "1mbit", "--profile", str(tmp_path / "profile.json"), "--topology", topology]
    assert main([*asked, "--save-plan", str(plan), "--plot", str(drawing)]) == 0
    prediction = PlanFile.load(plan).prediction
    assert prediction is not None
    assert max(span.end for span in prediction.spans) == pytest.approx(prediction.step, rel=0.05)
    lanes = {text.text for text in ElementTree.parse(drawing).iter("{http://www.w3.org/2000/svg}text")}
    assert lanes >= {"worker", "coding", "gradients", "updates"}
    assert ("weights" in lanes) == (topology != "gather")


@pytest.mark.long
def test_the_saved_plan_of_a_topology_is_trained_under_it(tmp_path: Path) -> None:
    """Check that the saved plan names a topology, under which a job then trains. At 1 Mbit/s the master's link delays the
    others in a star, so that another topology is the fastest.
    """
    file, measured, directory = tmp_path / "plan.json", tmp_path / "profile.json", tmp_path / "run"
    assert main(["plan", "-n", "3", "--scheme", "dense", "--save-profile", str(measured), "--", *MODEL, "--scheme", "qsgd"]) == 0
    plan = ["plan", "-n", "3", "--rate", "1mbit", "--cores", "2", "--topology", "auto", "--profile", str(measured)]
    assert main([*plan, "--save-plan", str(file)]) == 0
    assert main(["train", "--local", "3", "--plan", str(file), *MODEL, "--max-steps", "3", "--train-dir", str(directory)]) == 0
    record = json.loads((directory / "config.json").read_bytes())
    rows = forecasts(Profile.load(measured), Scenario(3, 1e6, 2e-4, 2), COMPARED)
    fastest = min((row for row in rows if row.name == record["config"]["scheme"]), key=lambda row: row.seconds)
    assert record["config"]["topology"] == fastest.topology != "star"
    assert record["prediction"]["workers"] == 3
    assert record["prediction"]["step"] == pytest.approx(fastest.seconds, rel=1e-6)


def test_of_several_topologies_those_that_train_refuses_are_left_out_with_a_line() -> None:
    found, refused = possible(Config(spares=1), ("star", "star:down=tree", "mesh", "gather"))
    assert found == ["star", "star:down=tree"]
    assert [line.partition(" under ")[2] for line in refused] == [
        f"--topology {each}: use --topology star" for each in ("mesh", "gather")
    ]
    with pytest.raises(ConfigurationError, match=r"--spares .* under --topology mesh"):
        possible(Config(spares=1), ("mesh",))


def test_a_scheme_with_a_coded_downlink_has_no_row_where_no_weights_are_sent() -> None:
    known = profile()
    coded = replace(known.schemes["qsgd"], settings={"scheme": "qsgd", "downlink": "qsgd"})
    rows = forecasts(replace(known, schemes={"qsgd": coded}), Scenario(3, 1e6, 0.0, 4), ("star", "gather"))
    assert {row.topology for row in rows if not row.peer} == {"star"}


@pytest.mark.parametrize("words", [[], ["--explain"]])
def test_a_topology_with_too_many_frames_is_left_out_with_a_line(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile().save(tmp_path / "profile.json")
    asked = ["plan", "-n", "80", "--one-machine", "--rate", "1gbit", "--profile", str(tmp_path / "profile.json")]
    assert main([*asked, "--topology", "gather"]) == 2
    assert "takes too long to predict under --topology gather" in capsys.readouterr().err
    assert main([*asked, "--topology", "auto", *words]) == 0
    out, told = capsys.readouterr()
    assert "note: --topology gather: " in told
    assert ", star" in out and ", gather" not in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--groups", "best", "--topology", "auto", "--"], "--groups needs one topology"),
        (["--groups", "best", "--", "--topology", "auto"], "--groups needs one topology"),
        (["--scheme", "qsgd --topology mesh", "--"], "--topology is the same for all that is compared: leave it out"),
        (["--topology", "mesh", "--", "--spares", "1"], "under --topology mesh: use --topology star"),
        (["--", "--topology", "mesh", "--norm-cap", "10"], "under --topology mesh: use --topology star"),
    ],
)
def test_what_cannot_be_measured_is_told_before_anything_is(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "-n", "2", *words, "--network", "LeNet", "--dataset", "synthetic"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert said in line


def test_a_finished_run_has_the_topology_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "run")
    profile().save(tmp_path / "profile.json")
    assert main(["plan", "--from", str(run), "--profile", str(tmp_path / "profile.json"), "--topology", "mesh"]) == 2
    assert "--from has the topology of its run: leave out --topology" in capsys.readouterr().err
