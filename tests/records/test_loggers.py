"""Loggers receive the contents of the run's own files, and cannot delay the run."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from psnode.config import Config
from psnode.config.load import load
from psnode.errors import ConfigurationError
from psnode.evaluator import follow
from psnode.jobs.job import run
from psnode.master.events import Events
from psnode.records.loggers.background import Background
from psnode.records.loggers.base import LoggedRun
from psnode.records.loggers.observer import Observer, chosen
from psnode.records.metrics import read_records

ROOT = Path(__file__).resolve().parents[2]
OWN = """
import json
from pathlib import Path

class Own:
    def begin(self, run):
        self.path = Path(run.directory) / "own.jsonl"
        self.told(begin=run.step, id=run.id, lr=run.settings["lr"], evaluates=run.evaluates)
    def scalars(self, step, values):
        self.told(step=step, **values)
    def event(self, step, text):
        self.told(event=text)
    def end(self, summary):
        self.told(end=summary and summary["stop_reason"])
    def told(self, **what):
        with self.path.open("a") as file:
            file.write(json.dumps(what) + "\\n")

class Broken(Own):
    def scalars(self, step, values):
        raise RuntimeError("no route to host")

class Exits(Own):
    def begin(self, run):
        raise SystemExit(3)
"""
# sockets can reach only this machine
GUARD = """
import os, socket

def guarded(method):
    def call(self, address, *more):
        if self.family in (socket.AF_INET, socket.AF_INET6) and not str(address[0]).startswith(("127.", "::1", "localhost")):
            with open(os.environ["TRIED"], "a") as file:
                file.write(f"{address}\\n")
            raise OSError("the network is blocked")
        return getattr(super(socket.socket, self), method)(address, *more)
    return call

for method in ("connect", "connect_ex"):
    setattr(socket.socket, method, guarded(method))
"""


def config(tmp_path: Path, *log_to: str, **settings: Any) -> Config:
    known = {"scheme": "dense", "batch_size": 8, "max_steps": 4, "eval_freq": 2, "local": 1, "threads": 1, "quiet": True}
    return Config(**{**known, "train_dir": tmp_path / "run", "tensorboard": False, "log_to": log_to, **settings})


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Write a file with loggers, and return its path."""
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_logger_of_ones_own_gets_every_step_the_resumed_part_and_the_evaluations_under_one_id(
    tmp_path: Path, own: Path
) -> None:
    assert run(config(tmp_path, f"{own}:Own", lr=0.03)) == 0
    assert run(config(tmp_path, f"{own}:Own", lr=0.03, max_steps=6, resume=True)) == 0
    assert follow(tmp_path / "run", once=True, trust_run=True) == 0
    told = lines(tmp_path / "run" / "own.jsonl")
    records = list(read_records(tmp_path / "run" / "metrics.jsonl"))
    steps = [line for line in told if "train/loss" in line]
    assert [(line["step"], line["train/loss"], line["comm/bytes_up"]) for line in steps] == [
        (record["step"], record["loss"], record["uplink_bytes"]) for record in records
    ]
    evaluated = [(line["step"], line["eval/loss"]) for line in told if "eval/loss" in line]
    assert evaluated == [(line["step"], line["loss"]) for line in lines(tmp_path / "run" / "evaluations.jsonl")]
    begun = [line for line in told if "begin" in line]
    assert [(line["begin"], line["lr"], line["evaluates"]) for line in begun] == [
        (0, 0.03, False),
        (4, 0.03, False),
        (2, 0.03, True),
    ]
    assert len({line["id"] for line in begun}) == 1
    assert [line["end"] for line in told if "end" in line] == ["completed", "completed", None]


def test_events_are_logged_even_those_before_the_run_begins(tmp_path: Path, own: Path) -> None:
    settings = config(tmp_path, f"{own}:Own", lr=0.1)
    with Observer(chosen(settings), tmp_path) as loggers:
        events = Events(tmp_path, loggers.event)
        events.tell("calibrated", 0, reason="as if")
        loggers.begin(settings)
        events.tell("lost", 3, rank=2)
    assert [line["event"] for line in lines(tmp_path / "own.jsonl") if "event" in line] == ["calibrated: as if", "rank 2 is lost"]


@pytest.mark.parametrize(("name", "told"), [("Broken", "no route to host"), ("Exits", "SystemExit: 3")])
def test_a_logger_that_fails_is_told_once_and_training_goes_on(
    name: str, told: str, tmp_path: Path, own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(config(tmp_path, f"{own}:{name}")) == 0
    errors = capsys.readouterr().err
    assert errors.count("nothing more is logged to") == 1
    assert told in errors
    assert len(list(read_records(tmp_path / "run" / "metrics.jsonl"))) == 4


class Stuck:
    """A logger whose network does not answer."""

    def __init__(self) -> None:
        self.answers, self.steps = threading.Event(), list[int]()

    def begin(self, run: LoggedRun) -> None: ...

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self.answers.wait()
        self.steps.append(step)

    def event(self, step: int, text: str) -> None: ...

    def end(self, summary: Mapping[str, Any] | None) -> None: ...


def test_a_logger_that_hangs_is_not_waited_for_and_what_is_too_much_for_it_is_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    from psnode.config.logs import shown

    stuck = Stuck()

    def put(step: int) -> Callable[[Any], None]:
        return lambda logger: logger.scalars(step, {})

    with shown(0):
        thread = Background("it", lambda: stuck, waiting=2)
        for step in range(10):
            thread.put(put(step))  # does not block
        thread.close(0.0)
    errors = capsys.readouterr().err
    assert errors.count("slower than the steps") == errors.count("not waited for") == 1
    stuck.answers.set()
    thread.close(threading.TIMEOUT_MAX)
    assert stuck.steps == sorted(stuck.steps)
    assert 2 <= len(stuck.steps) <= 3  # the waiting ones, and the one being sent


def test_a_package_that_is_not_there_is_named_before_the_run_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"needs the package wandb: pip install '\.\[loggers\]' in a clone of psnode"):
        run(config(tmp_path, "wandb"))
    assert not (tmp_path / "run").exists()
    assert chosen(config(tmp_path, tensorboard=None)) == {}


def test_unknown_and_contradictory_loggers_are_refused(tmp_path: Path, own: Path) -> None:
    with pytest.raises(ConfigurationError, match="unknown logger 'wanbd': did you mean wandb"):
        chosen(config(tmp_path, "wanbd"))
    with pytest.raises(ConfigurationError, match="no class 'Nothing': it has Broken, Exits, Own"):
        chosen(config(tmp_path, f"{own}:Nothing"))
    with pytest.raises(ConfigurationError, match="contradict each other"):
        load({"tensorboard": False, "log_to": ("tensorboard",)}, {})


def test_a_logger_that_only_the_record_names_is_not_executed(tmp_path: Path, own: Path) -> None:
    assert run(config(tmp_path, f"{own}:Own")) == 0
    again = {"resume": True, "train_dir": tmp_path / "run", "max_steps": 6}
    with pytest.raises(ConfigurationError, match="would execute"):
        load(again, {})
    told = (tmp_path / "run" / "own.jsonl").read_bytes()
    assert follow(tmp_path / "run", once=True) == 0
    assert (tmp_path / "run" / "own.jsonl").read_bytes() == told
    assert load({**again, "log_to": (f"{own}:Own",)}, {}).log_to == (f"{own}:Own",)


def test_tensorboard_gets_figures_settings_events_and_summary(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.metadata import SESSION_START_INFO_TAG

    settings = config(tmp_path, "tensorboard", tensorboard=True, lr=0.04, train_dir=tmp_path)
    assert run(settings) == 0
    assert follow(tmp_path, once=True) == 0
    found = EventAccumulator(str(tmp_path / "tensorboard")).Reload()

    def figures(tag: str) -> list[tuple[int, float]]:
        return [(point.step, float(point.tensor_proto.float_val[0])) for point in found.Tensors(tag)]

    records = list(read_records(tmp_path / "metrics.jsonl"))
    assert figures("train/loss") == [(record["step"], pytest.approx(record["loss"])) for record in records]
    evaluations = lines(tmp_path / "evaluations.jsonl")
    assert figures("eval/top1") == [(line["step"], pytest.approx(line["top1"])) for line in evaluations]
    assert b"lr = 0.04" in found.Tensors("settings")[0].tensor_proto.string_val[0]
    assert b"| stop_reason | completed |" in found.Tensors("summary")[0].tensor_proto.string_val[0]
    metadata = found.SummaryMetadata(SESSION_START_INFO_TAG)
    assert metadata.plugin_data.plugin_name == "hparams"
    assert b"lr" in metadata.plugin_data.content


@pytest.mark.long
@pytest.mark.serial
def test_weights_and_biases_mlflow_and_trackio_hold_the_run_without_a_network(tmp_path: Path) -> None:
    """Check one run of 4 steps, resumed to 6 and evaluated three times, which each package reads from its own files."""
    for package in ("wandb", "mlflow", "alembic", "sqlalchemy", "trackio"):
        if importlib.util.find_spec(package) is None:  # the package is not imported here
            pytest.skip(f"needs {package}")
    guard, directory = tmp_path / "guard", tmp_path / "run"
    guard.mkdir()
    (guard / "sitecustomize.py").write_text(GUARD)
    places = {"TRIED": tmp_path / "tried", "FOUND": tmp_path / "found.json", "TRACKIO_DIR": tmp_path / "trackio"}
    env = {**os.environ, **{name: str(path) for name, path in places.items()}, "WANDB_MODE": "offline"}
    env["PYTHONPATH"] = f"{guard}:{ROOT}"
    program = [sys.executable, str(ROOT / "tests" / "records" / "logged_run.py"), str(directory)]
    done = subprocess.run(program, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert "nothing more is logged" not in done.stderr
    assert not (tmp_path / "tried").exists(), (tmp_path / "tried").read_text()
    found = json.loads((tmp_path / "found.json").read_text())
    losses = [[record["step"], record["loss"]] for record in read_records(directory / "metrics.jsonl")]
    assert [step for step, _ in losses] == [1, 2, 3, 4, 5, 6]
    evaluations = [[line["step"], line["loss"]] for line in lines(directory / "evaluations.jsonl")]
    summary = json.loads((directory / "summary.json").read_text())

    for name in ("mlflow", "trackio"):
        assert found[name]["figures"]["train/loss"] == losses, name
        assert found[name]["figures"]["eval/loss"] == evaluations, name
        assert found[name]["figures"]["run/uplink_bytes"][-1] == [6, summary["uplink_bytes"]], name
        assert float(found[name]["settings"]["lr"]) == 0.02, name
    assert (found["mlflow"]["settings"]["max_steps"], found["mlflow"]["tags"]["now.max_steps"]) == ("4", "6")
    assert found["mlflow"]["end"] == "FINISHED"

    first, resumed, evaluated = found["wandb"]
    assert first["figures"]["train/loss"] + resumed["figures"]["train/loss"] == losses
    assert evaluated["figures"]["eval/loss"] == evaluations
    assert first["id"] == resumed["id"] == first["group"] == evaluated["group"]
    assert evaluated["id"] == f"{first['id']}-evaluate"
    assert (first["settings"]["lr"], resumed["summary"]["run/model_hash"]) == (0.02, summary["model_hash"])
    assert first["end"] == resumed["end"] == evaluated["end"] == 0
