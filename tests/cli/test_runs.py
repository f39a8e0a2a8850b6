"""`psnode runs`: one line per run, sorted, as a table of 80 columns or as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from psnode.cli import main
from tests.report.conftest import CONFIG, lines, record, write_run


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make three runs below runs/: the second has the best accuracy; the third has no accuracy and the most bytes."""
    scheme = CONFIG["scheme"] | {"name": "a-scheme-with-a-very-long-name"}
    write_run(tmp_path / "runs/first", [record(k) for k in (1, 2, 3)])
    write_run(tmp_path / "runs/second", [record(k, uplink_bytes=1) for k in (1, 2)], workers=3, scheme=scheme)
    write_run(tmp_path / "runs/deeper/third", [record(1, uplink_bytes=10**9, loss=None)])
    for name, top1 in (("first", 0.5), ("second", 0.75)):
        lines(tmp_path / "runs" / name / "evaluations.jsonl", [{"step": 1, "loss": 1.0, "top1": top1}])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path / "runs"


def test_every_run_has_a_line_of_eighty_columns(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert max(map(len, out)) <= 80
    found = {line.split()[0]: line.split() for line in out}
    assert found["first"][1:9] == ["qsgd", "2", "3", "0.3333", "50.00", "1.20", "kB", "4.00"]
    assert found["second"][2:6] == ["3", "2", "0.5000", "75.00"]
    assert found["deeper/third"][4:8] == ["–", "–", "1.00", "GB"]


@pytest.mark.parametrize(
    ("order", "names"),
    [
        (["name"], ["deeper/third", "first", "second"]),
        (["accuracy"], ["second", "first", "deeper/third"]),
        (["accuracy", "--reverse"], ["first", "second", "deeper/third"]),  # unknown figures stay last
        (["loss"], ["first", "second", "deeper/third"]),
        (["sent"], ["second", "first", "deeper/third"]),
        (["ratio"], ["second", "first", "deeper/third"]),
        (["steps"], ["first", "second", "deeper/third"]),
        (["time", "--reverse"], ["first", "second", "deeper/third"]),
    ],
)
def test_the_best_comes_first(runs: Path, capsys: pytest.CaptureFixture[str], order: list[str], names: list[str]) -> None:
    assert main(["runs", str(runs), "--json", "--sort", *order]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [str(Path(each["path"]).relative_to(runs)) for each in found] == names


def test_json_has_what_the_records_say(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", str(runs / "first"), "--json"]) == 0
    [found] = json.loads(capsys.readouterr().out)
    assert found == {
        "path": str(runs / "first"), "scheme": "qsgd", "topology": None, "workers": 2, "steps": 3, "loss": 1 / 3, "top1": 0.5,
        "best_loss": 1.0,
        "uplink_bytes": 900, "downlink_bytes": 300, "uplink_control_bytes": 0, "downlink_control_bytes": 0,
        "compression_ratio": 8 * 100 * 2 * 3 / 1200, "seconds": 6.0, "ended": "killed or crashed", "problems": [],
    }  # fmt: skip


def test_long_names_take_one_line_each_and_stay_unlike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    names = [f"dense---codec-block.py:Block---feedback-ef---downlink-topk:ratio=0.01---lr-0.{lr}-1" for lr in range(4)]
    for name in names:
        write_run(tmp_path / name, [record(k, loss=1e22 / 3, uplink_bytes=10**8) for k in range(1, 100)])
        (tmp_path / name / "summary.json").write_text(json.dumps({"stop_reason": "completed", "exit_code": 0}))
    assert main(["runs", str(tmp_path)]) == 0
    head, *told = capsys.readouterr().out.splitlines()
    assert len(told) == len(names) + 2 and max(map(len, (head, *told))) <= 80
    assert len({line.split()[0] for line in told[: len(names)]}) == len(names)
    assert all(line.startswith("dense---") and line.split()[-1] == "completed" for line in told[: len(names)])
    assert "--json" in told[-1]


def test_where_no_run_has_an_accuracy_the_lowest_test_loss_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for name, losses in (("low", (2.5, 2.25, 2.75)), ("high", (3.5,))):
        path = write_run(tmp_path / name, [record(1)])
        lines(path / "evaluations.jsonl", [{"step": k, "loss": loss} for k, loss in enumerate(losses, 1)])
    assert main(["runs", str(tmp_path), "--sort", "test-loss"]) == 0
    head, low, *_ = capsys.readouterr().out.splitlines()
    assert head.split()[5] == "test" and low.split()[0] == "low" and low.split()[5] == "2.2500"


def test_a_run_with_another_codec_is_listed_by_its_codec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    config, scheme = CONFIG["config"], CONFIG["scheme"] | {"name": "polar-2bit"}
    path = write_run(
        tmp_path / "coded", [record(1)],
        config=config | {"codec": "topk:ratio=0.05"}, scheme=scheme | {"codec": "topk:ratio=0.05,sampled=false"},
    )  # fmt: skip
    assert main(["runs", str(path)]) == 0
    head, line, *_ = capsys.readouterr().out.splitlines()
    assert line.split()[1] == "topk:ratio=0.05" and len(head) <= 80
    assert main(["runs", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["scheme"] == "topk:ratio=0.05"
    assert main(["report", str(path), "-o", str(tmp_path / "page.html")]) == 0
    assert "<td>topk:ratio=0.05</td>" in (tmp_path / "page.html").read_text()


def test_a_damaged_run_is_told_and_the_others_are_listed(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "first/config.json").write_text("{")
    (runs / "second/metrics.jsonl").write_text("\x1b]0;title\x07\n")
    assert main(["runs"]) == 0
    done = capsys.readouterr()
    assert len(done.err.splitlines()) == 2 and "\x1b" not in done.err
    assert "deeper/third" in done.out and "second" in done.out


@pytest.mark.parametrize(
    "arguments", [["runs", "absent"], ["runs", "empty"], ["report", "absent"], ["report", "empty"], ["report"]]
)
def test_where_there_is_no_run_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    assert main(arguments) == 2
    told = capsys.readouterr().err
    assert told.startswith("psnode: error: ") and told.count("\n") == 1
    assert not (tmp_path / "report.html").exists()


def test_without_arguments_the_directory_runs_is_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["runs"]) == 2
    assert "there is no directory runs here" in capsys.readouterr().err


def test_the_topology_is_shown_where_runs_differ_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for name, topology in (("one", "star"), ("two", "mesh"), ("three", "star:down=tree")):
        steps = [record(k, loss=1e22 / 3, uplink_bytes=10**8) for k in range(1, 100)]
        write_run(tmp_path / name, steps, config=CONFIG["config"] | {"topology": topology})
    write_run(tmp_path / "old", [record(1)])
    assert main(["runs", str(tmp_path)]) == 0
    head, *told = capsys.readouterr().out.splitlines()
    found = {line.split()[0]: line.split()[2] for line in told if "qsgd" in line}
    assert head.split()[2] == "topo" and max(map(len, (head, *told))) <= 80
    assert (found["one"], found["two"], found["old"]) == ("star", "mesh", "–")
    assert found["three"].startswith("star:") and "topo: --topology" in " ".join(told)
    assert main(["runs", str(tmp_path), "--json"]) == 0
    told_all = {Path(each["path"]).name: each["topology"] for each in json.loads(capsys.readouterr().out)}
    assert told_all == {"one": "star", "two": "mesh", "three": "star:down=tree", "old": None}
    for alike in ("one", "old"):  # a run of an earlier version is no other topology
        assert main(["runs", str(tmp_path / "one"), str(tmp_path / alike)]) == 0
        assert "topo" not in capsys.readouterr().out


def test_a_wide_terminal_shows_whole_topologies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    for servers in (2, 4):
        write_run(tmp_path / f"of-{servers}", [record(1)], config=CONFIG["config"] | {"topology": f"sharded:servers={servers}"})
    assert main(["runs", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "sharded:servers=2" in out and "sharded:servers=4" in out
