"""The command `psnode simulate`: its lines, its JSON, the records that other commands read, and mistakes in its options."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from psnode.cli import main
from psnode.jobs.planning.profile import GroupCosts, HostCosts, Profile, SchemeCosts, TensorTimes
from psnode.jobs.simulating.simulated_records import SIMULATION
from psnode.plans.groups import Group, Plan, Segment, Tensor
from psnode.records.history import violations
from psnode.records.metrics import METRICS, read_records
from psnode.report import run as report_run
from psnode.report.critical import paths, spans_of

UP, DOWN = 1000, 500  # bytes of a group's frames
PLAN = Plan(
    (Tensor("w", (100, 10)),),
    (Group(0, (Segment(0, "topk", 0, (500,)),)), Group(1, (Segment(1, "topk", 500, (500,)),))),
)
GROUPING = {"group_by": "bytes", "group_bytes": 2000}
RULES: dict[str, tuple[list[str], int | None]] = {
    "bsp": ([], 0),
    "kofn": (["--num-aggregate", "2"], 0),
    "ssp": (["--staleness", "2"], 2),
    "asp": ([], None),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    groups = tuple(GroupCosts(UP, DOWN, 0.002, 0.001, 0.001, 0.001, ready, 0.0) for ready in (0.1, 0.2))
    planned = SchemeCosts(groups, 0.0, 0.0, True, plan=PLAN.to_dict(), grouping=GROUPING)
    profile = Profile(
        "LeNet", 1, 0.1, 0.2, 0.0, (TensorTimes((100, 10), 0.2, 0.0, "w"),), HostCosts(0.0, 0.0, 0.0, 0.0, 4, 1.0),
        {"topk": planned, "dense": SchemeCosts(groups, 0.0, 0.0, False)}, {},
    )  # fmt: skip
    profile.save(tmp_path / "profile.json")
    return tmp_path / "profile.json"


def words(file: Path, *more: str) -> list[str]:
    return ["simulate", "--profile", str(file), "-n", "3", "--rate", "1gbit", "--scheme", "topk", *more]


def test_a_simulated_job_is_told_in_lines_of_80_columns(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words(file, "--steps", "4", "--jitter", "0.1", "--kill", "3@0.5")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "LeNet, topk: 3 workers, links of 1gbit"
    assert lines[1].startswith("4 steps in ")
    assert "staleness of gradients: 0: 100.0 %" in lines
    assert lines[-1].startswith("  at 0.600 s, step 1: rank 3 lost")
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("topology", ["gather", "star:down=tree", "sharded:servers=2"])
@pytest.mark.parametrize("loss", [("--kill", "1@3"), ("--stop", "1@3:500")])
def test_a_job_goes_on_without_a_worker_and_its_records_have_no_violations(
    loss: tuple[str, str], topology: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = file.parent / "run"
    assert main(words(file, *loss, "--topology", topology, "--steps", "30", "--train-dir", str(run), "--json")) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["versions"]) == 30 and found["versions"][-1]["contributors"] == [2, 3]
    assert violations(run, 0) == []


@pytest.mark.parametrize(("flags", "first"), [([], [1]), (["--uneven", "0.4"], [2])])
def test_an_uneven_link_gives_the_last_worker_the_greatest_share(
    flags: list[str], first: list[int], file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check a slow link, on which the gradients of two workers arrive together or that of rank 2 first, and a round that the
    first gradient closes. Of two that arrive together that of rank 1 is the first.
    """
    asked = ["-n", "2", "--rate", "10kbit", "--jitter", "0", "--steps", "2", "--consistency", "kofn", "--num-aggregate", "1"]
    assert main(words(file, *asked, "--aggregate-order", "arrival", *flags, "--json")) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["versions"][0]["contributors"] == first
    assert found["uneven"] == (0.4 if flags else 0.0)


@pytest.mark.parametrize("rule", RULES)
def test_the_records_are_those_of_a_run_without_violations(rule: str, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Check by the checker of real histories that no gradient is used twice or too late, and that no step is missing,
    whatever happens to workers.
    """
    flags, bound = RULES[rule]
    run = file.parent / "run"
    asked = ["--steps", "30", "--jitter", "0.5", "--stop", "2@1:2", "--kill", "3@4", "--consistency", rule, *flags]
    assert main(words(file, *asked, "--train-dir", str(run), "--json")) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert violations(run, bound) == []
    records = list(read_records(run / METRICS))
    assert [record["step"] for record in records] == list(range(1, 31))
    assert sum(record["seconds"]["step"] for record in records) == pytest.approx(found["seconds"])
    assert [record["contributing"] for record in records] == [len(each["contributors"]) for each in found["versions"]]
    assert sum(record["downlink_bytes"] for record in records) == found["links"][0]["sent"]
    assert sum(record["uplink_bytes"] for record in records) == found["links"][0]["received"]
    assert json.loads((run / SIMULATION).read_text())["links"] == found["links"]


def test_runs_and_report_read_the_records(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, page = file.parent / "run", file.parent / "page.html"
    assert main(words(file, "--steps", "5", "--train-dir", str(run))) == 0
    assert main(["runs", str(run), "--json"]) == 0
    [facts] = json.loads(capsys.readouterr().out.partition("[")[2].join(("[", "")))
    assert (facts["steps"], facts["ended"], facts["uplink_bytes"]) == (5, "simulated", 5 * 3 * 2 * UP)
    assert facts["compression_ratio"] == pytest.approx(5 * 3 * 8 * 1000 / (5 * 3 * 2 * (UP + DOWN)))
    assert main(["report", str(run), "-o", str(page)]) == 0
    assert b"seconds" in page.read_bytes()
    assert report_run.read(run).steps.sum("seconds.step") > 1.5


def test_the_report_finds_the_critical_path_of_simulated_steps(file: Path) -> None:
    """Check that the parts of the path add up to each step, and that the path of the third step leads through the worker
    that is stopped in it.
    """
    run = file.parent / "run"
    assert main(words(file, "--steps", "5", "--stop", "2@0.7:1", "--train-dir", str(run), "--timeline")) == 0
    times = {record["step"]: record["seconds"]["step"] for record in read_records(run / METRICS)}
    found = {path.step: path for path in paths(spans_of(report_run.read(run).timeline()))}
    assert sorted(found) == [2, 3, 4, 5]
    for step, path in found.items():
        assert sum(part.stop - part.start for part in path.parts) == pytest.approx(times[step], abs=1e-6)
    assert found[3].worker == 2 and times[3] > 1
    assert max(found[3].parts, key=lambda part: part.stop - part.start).name == "forward_backward"


def test_no_training_resumes_from_a_simulated_run(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = file.parent / "run"
    assert main(words(file, "--steps", "1", "--train-dir", str(run))) == 0
    assert main(["train", "--local", "1", "--resume", "--train-dir", str(run)]) == 2
    assert "holds no run" in capsys.readouterr().err
    assert main(words(file, "--steps", "1", "--train-dir", str(run))) == 2
    assert "is not empty: choose another --train-dir" in capsys.readouterr().err
    shutil.rmtree(run)


def test_the_durations_of_the_profile_are_used_unless_others_are_given(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Check the steps of one worker, whose passes take .3 s times 1 or 9, the durations relative to their median, and .005 s
    of other work as in the test below.
    """
    found = Profile.load(file)
    replace(found, host=replace(found.host, durations=(0.1, 0.1, 0.1, 0.9))).save(file)
    asked = ["simulate", "--profile", str(file), "-n", "1", "--rate", "none", "--round-trip", "0", "--scheme", "topk"]

    def told(*more: str) -> dict[str, Any]:
        assert main([*asked, "--steps", "30", "--json", *more]) == 0
        return dict(json.loads(capsys.readouterr().out))

    def seconds(told: dict[str, Any]) -> set[float]:
        return {round(version["seconds"], 6) for version in told["versions"][1:]}

    assert seconds(own := told()) == {0.305, 2.705}
    assert (own["pass_times"], own["jitter"]) == (str(file), 0.0)
    assert seconds(even := told("--jitter", "0")) == {0.305}
    assert (even["pass_times"], even["jitter"]) == ("", 0.0)


def test_measured_durations_take_the_place_of_jitter(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Check the steps of one worker, whose passes take .3 s times 1/2 or 3/2.

    The late group is coded, decoded, updated and applied in .005 s before the next step can continue. For the early group
    all of this happens meanwhile.
    """
    times = file.parent / "times.txt"
    times.write_text("1\n3\n")
    asked = ["simulate", "--profile", str(file), "-n", "1", "--rate", "none", "--round-trip", "0", "--scheme", "topk"]
    assert main([*asked, "--steps", "12", "--pass-times", str(times), "--json"]) == 0
    seconds = [version["seconds"] for version in json.loads(capsys.readouterr().out)["versions"]]
    assert {round(each, 6) for each in seconds[1:]} == {0.155, 0.455}


def test_a_topology_is_told_with_the_links_of_all_ranks(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Check the lines about links. Each of three workers sends one of the two groups to the server and the other to the
    master, and gets it back.
    """
    asked = words(file, "--steps", "4", "--topology", "sharded:servers=2")
    assert main(asked) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "LeNet, topk, --topology sharded:servers=2: 3 workers, links of 1gbit"
    assert lines[-3].startswith("the master's link: ")
    assert lines[-2].startswith("the busiest worker's link, of rank ") and lines[-1].startswith(
        "the busiest server's link, of rank 4: "
    )
    assert main([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["topology"] == "sharded:servers=2"
    each = [(link["sent"], link["received"]) for link in found["links"]]
    server, worker = (4 * 3 * DOWN, 4 * 3 * UP), (4 * 2 * UP, 4 * 2 * DOWN)
    assert each == [server, worker, worker, worker, server]


def test_a_mesh_that_loses_a_worker_ends_with_its_records_and_the_code_of_a_run(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = file.parent / "run"
    asked = ["--steps", "9", "--topology", "mesh", "--kill", "2@1", "--train-dir", str(run), "--timeline"]
    assert main(words(file, *asked)) == 3
    out, told = capsys.readouterr()
    assert "3 steps in " in out and ", then the job ended: lost" in out
    [line] = told.splitlines()
    assert "the run cannot go on without rank 2" in line
    assert len(list(read_records(run / METRICS))) == 3 and violations(run, 0) == []
    ranks = {event["pid"] for event in report_run.read(run).timeline() if event["name"] == "update"}
    assert ranks == {1, 2}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--scheme", "tpk"], "has no scheme 'tpk': it has 'topk', 'dense'"),
        (["--rate", "fast"], "--rate must be a number above 0 with kbit, mbit or gbit"),
        (["--stop", "2@3"], "--stop must be RANK@SECONDS:DURATION"),
        (["--kill", "4@3"], "--stop and --kill name workers, which are 1 to 3"),
        (["--consistency", "kofn"], "--consistency kofn needs --num-aggregate"),
        (["--staleness", "3"], "--staleness"),
        (["--jitter", "0.1", "--pass-times", "times.txt"], "--jitter and --pass-times both say"),
        (["--timeline"], "--timeline writes into --train-dir"),
        (["--profile", "none.json"], "--profile none.json holds no profile"),
        (["--topology", "net"], "--topology must be"),
        (["--topology", "auto"], "name the topology to simulate"),
        (["--topology", "mesh", "--consistency", "asp"], "--consistency would close the parts of a version"),
        (["--topology", "mesh", "--scheme", "dense"], "this profile holds no plans"),
        (["--topology", "gather", "-n", "150"], "takes too long to simulate under --topology gather: ask for fewer workers"),
    ],
)
def test_mistakes_are_told_in_one_line(more: list[str], said: str, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words(file, *more)) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert said in line
