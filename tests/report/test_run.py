"""Any directory is read as far as possible, in bounded time, without executing its contents."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from filelock import FileLock

from psnode.cli import main
from psnode.errors import ConfigurationError
from psnode.report.page import render
from psnode.report.run import read, read_all
from psnode.report.run_search import find
from tests.attacks.test_attacks import ATTACKS, OLD_RUNS, load_attack
from tests.report.conftest import CONFIG, lines, record, write_run

pytestmark = pytest.mark.timeout(60)


def test_sums_and_ratios_are_those_of_the_records(tmp_path: Path) -> None:
    run = read(write_run(tmp_path / "run", [record(k) for k in range(1, 6)]))
    assert (run.reached, run.workers, run.last("loss"), run.sent) == (5, 2, 0.2, 2000)
    assert run.ratio == 8 * 100 * 2 * 5 / 2000  # 100 coordinates, 2 workers, 4 bytes up and 4 bytes down each
    assert run.best is None
    assert run.problems == []


def test_a_run_of_psnode_is_read_as_it_summed_itself_up(trained: Path) -> None:
    run = read(trained)
    summary = json.loads((trained / "summary.json").read_text())
    assert run.problems == []
    assert (run.reached, run.sent) == (summary["steps"], summary["uplink_bytes"] + summary["downlink_bytes"])
    assert run.ratio == pytest.approx(summary["compression_ratio"])
    assert run.last("loss") == summary["final_loss"]
    assert run.ended == "completed"
    evaluated = [json.loads(line) for line in (trained / "evaluations.jsonl").read_text().splitlines()]
    assert run.best == max(line["top1"] for line in evaluated)


@pytest.mark.parametrize("name", ["dense", "qsgd", "atomo"])
def test_old_runs_are_read(name: str) -> None:
    run = read(OLD_RUNS / name)
    assert (run.reached, run.scheme["name"], run.ended, run.problems) == (7, name, "completed", [])
    assert b"</html>" in render([run])


def test_how_a_run_ended_is_told(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", [record(1)])
    assert read(path).ended == "killed or crashed"
    with FileLock(path / ".lock"):
        assert read(path).ended == "running"
    assert read(path).ended == "killed or crashed"
    (path / "summary.json").write_text(json.dumps({"stop_reason": "signal", "exit_code": 75}))
    assert read(path).ended == "signal (exit code 75)"
    (path / "summary.json").unlink()
    (path / "metrics.jsonl").unlink()
    assert read(path).ended == "killed or starting"


def test_looking_at_a_run_leaves_it_as_it_is(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", [record(1)])
    before = {file: file.stat().st_mtime_ns for file in (path, *path.iterdir())}
    render([read(path)])
    assert {file: file.stat().st_mtime_ns for file in (path, *path.iterdir())} == before


@pytest.mark.parametrize(
    "file", ["config.json", "metrics.jsonl", "evaluations.jsonl", "events.jsonl", "summary.json", "machines.json"]
)
@pytest.mark.parametrize("content", [b"{", b"[]\n", b'{"step": "x"}\n', b"\xff\xfe\n", b'{"step": -1}\n', b'{"step": 1e999}\n'])
def test_a_file_that_cannot_be_used_is_told_in_one_line_and_the_rest_is_shown(tmp_path: Path, file: str, content: bytes) -> None:
    path = write_run(tmp_path / "run", [record(k) for k in (1, 2)])
    (path / file).write_bytes(content)
    run = read(path)
    assert all(file in problem and "\n" not in problem for problem in run.problems)
    assert len(run.problems) <= 1
    if content == b"[]\n":
        assert run.problems
    assert b"</html>" in render([run])


def test_records_before_a_damaged_line_and_before_a_torn_one_are_shown(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", [record(1), record(2)])
    with (path / "metrics.jsonl").open("a") as file:
        file.write("damage\n" + json.dumps(record(4)) + "\n")
    run = read(path)
    assert run.reached == 2
    assert "line 3 of" in run.problems[0]
    lines(path / "metrics.jsonl", [record(1)])
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "lo')  # a line that is read while it is being written
    assert (read(path).reached, read(path).problems) == (1, [])


def test_records_without_a_configuration_are_shown(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", [record(1)])
    (path / "config.json").unlink()
    run = read(path)
    assert "config.json" in run.problems[0]
    assert (run.reached, run.ratio) == (1, None)
    assert b"</html>" in render([run])


@pytest.mark.parametrize("name", ATTACKS)
def test_an_altered_directory_is_read_in_bounded_time_and_nothing_beside_it_is_touched(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = shutil.copytree(OLD_RUNS / "dense", tmp_path / "run")
    load_attack(name, monkeypatch).attack(path)
    assert main(["report", str(path), "-o", str(tmp_path / "page.html")]) in (0, 2)
    told = capsys.readouterr().err
    assert "\x1b" not in told and "Traceback" not in told
    assert not (tmp_path / "victim").exists()


def test_a_codec_that_only_a_record_names_is_not_executed(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs.py"
    theirs.write_text(f"import pathlib\npathlib.Path({str(tmp_path / 'executed')!r}).touch()\n")
    asked = CONFIG["config"] | {"codec": f"{theirs}:Codec", "task": str(theirs)}
    unrecorded = {name: value for name, value in CONFIG.items() if name != "scheme"}
    path = write_run(tmp_path / "run", [record(1)])
    (path / "config.json").write_text(json.dumps(unrecorded | {"config": asked}))
    run = read(path)
    assert (run.problems, run.scheme["codec"]) == ([], f"{theirs}:Codec")
    render([run])
    assert not (tmp_path / "executed").exists()


def test_runs_are_found_below_a_directory_and_links_are_not_followed(tmp_path: Path) -> None:
    made = [write_run(tmp_path / name, []) for name in ("a/one", "a/two", "b")]
    write_run(made[0] / "inner", [])  # belongs to a run
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    (tmp_path / "a" / "empty").mkdir()
    assert find([tmp_path]) == made
    assert find([made[1], tmp_path / "a"]) == [made[1], made[0]]
    assert [run.name for run in read_all(find([tmp_path]))] == ["a/one", "a/two", "b"]
    assert [run.name for run in read_all([made[2]])] == ["b"]
    with pytest.raises(ConfigurationError, match="is not a directory"):
        find([tmp_path / "absent"])
    with pytest.raises(ConfigurationError, match="holds no run"):
        read(tmp_path / "a" / "empty")


def test_a_config_of_another_program_is_no_run_unless_a_job_was_at_work_there(tmp_path: Path) -> None:
    for name, content in {"model": '{"model_type": "gpt2"}', "list": "[]", "comment": "// {", "damaged": "{"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(content)
    inner = write_run(tmp_path / "model" / "run", [record(1)])
    begun = write_run(tmp_path / "begun", [])
    (begun / "metrics.jsonl").unlink()
    (tmp_path / "damaged" / ".mark").write_text("0" * 32)
    assert find([tmp_path]) == [begun, tmp_path / "damaged", inner]


def test_a_pipe_in_the_place_of_the_timeline_is_not_waited_for(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", [record(1)])
    os.mkfifo(path / "timeline.json")
    run = read(path)
    render([run])
    assert run.problems == [f"{path}/timeline.json cannot be used: it is not a regular file"]
