"""Recorded DDP trainings: their bytes are those that the ranks count, and `psnode report` and `psnode runs` show them."""

from __future__ import annotations

import json
import os
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from psnode import ddp
from psnode.cli import main
from psnode.ddp.buckets import Bucket
from psnode.errors import ConfigurationError
from psnode.plans.groups import Plan
from psnode.report.page import render
from psnode.report.run import read
from tests.ddp.program import RANKS, SHAPES
from tests.ddp.recorded import CODECS, LR, STEPS
from tests.forking import FORKING

ROOT = Path(__file__).resolve().parents[2]
FLOATS = sum(int(np.prod(shape)) for shape in SHAPES.values())


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded")
    program = [FORKING.python(), Path(__file__).with_name("recorded.py")]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    processes = [subprocess.Popen([*program, str(rank), folder], env=env) for rank in range(RANKS)]
    assert [process.wait(timeout=300) for process in processes] == [0] * RANKS
    return folder


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.serial
@pytest.mark.parametrize("codec", CODECS)
def test_bytes_are_those_that_the_ranks_have_counted(recorded: Path, codec: str) -> None:
    """Compare the recorded bytes with those that each rank has counted. Each of the two ranks receives as many bytes as it
    sends.
    """
    counted = [json.loads((recorded / f"{rank}.json").read_text())[codec] for rank in range(RANKS)]
    sent = [sum(after) - sum(before) for before, after in pairwise(zip((0,) * STEPS, *counted, strict=True))]
    told = records(recorded / codec / "metrics.jsonl")
    assert [record["step"] for record in told] == list(range(1, STEPS + 1))
    if codec == "none":
        assert {record["uplink_bytes"] for record in told} == {4 * FLOATS * RANKS}
    else:
        assert [record["uplink_bytes"] for record in told][1:] == sent
        assert sum(record["uplink_bytes"] for record in told) == sum(each[-1] for each in counted)
    assert all(record["downlink_bytes"] == (RANKS - 1) * record["uplink_bytes"] for record in told)


@pytest.mark.serial
def test_a_recorded_training_is_a_run_for_runs_and_report(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", str(recorded), "--json"]) == 0
    found = {Path(each["path"]).name: each for each in json.loads(capsys.readouterr().out)}
    assert set(found) == set(CODECS)
    for codec, each in found.items():
        assert (each["scheme"], each["workers"], each["steps"]) == ("ddp" if codec == "none" else "ddp hook", RANKS, STEPS)
        assert (each["loss"], each["best_loss"], each["top1"]) == (STEPS - 1, 2.5, 0.75)  # the losses of rank 0
        assert (each["ended"], each["problems"]) == ("completed", [])
    assert found["none"]["compression_ratio"] == 8 * FLOATS * RANKS * STEPS / (2 * 4 * FLOATS * RANKS * STEPS)
    run = read(recorded / "qsgd")
    assert run.scheme["codec"] == "qsgd" and run.settings == {"seed": 1, "batch_size": 8}
    assert run.steps.column("lr").tolist() == [LR] * STEPS and run.steps.column("metrics.top5").tolist() == [0.25] * STEPS
    page = render([run, read(recorded / "none")]).decode()
    for words in ("Training loss", "Test accuracy (top1)", "all-gather", "Plan of qsgd"):
        assert words in page


def test_a_run_is_continued_at_its_step_and_never_overwritten(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    with ddp.RunRecords(tmp_path, model) as first:
        for step in range(5):
            first.step(loss=float(step))
        with pytest.raises(ConfigurationError, match="another program is at work"):
            ddp.RunRecords(tmp_path, model, step=3).__enter__()
    with pytest.raises(ConfigurationError, match="already holds a run"):
        ddp.RunRecords(tmp_path, model).__enter__()
    with ddp.RunRecords(tmp_path, model, step=3) as second:
        second.step(loss=7.0)
    assert [(record["step"], record["loss"]) for record in records(tmp_path / "metrics.jsonl")] == [
        (1, 0.0), (2, 1.0), (3, 2.0), (4, 7.0),
    ]  # fmt: skip
    assert read(tmp_path).ended == "completed"


def test_a_run_that_an_error_ends_is_told_with_its_kind(tmp_path: Path) -> None:
    def trained() -> None:
        with ddp.RunRecords(tmp_path / "run", nn.Linear(3, 2)) as run:
            run.step()
            assert read(tmp_path / "run").ended == "running"
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        trained()
    assert read(tmp_path / "run").ended == "ended by ZeroDivisionError (exit code 1)"


def test_a_payload_reaches_all_other_ranks_and_a_sum_reaches_each_rank_once() -> None:
    state, _ = ddp.comm_hook("qsgd")
    bucket = Bucket((), Plan((), ()), (), (True, False))
    state._reduction._count(bucket, np.array([[10, 1], [10, 2], [10, 3]]))  # three ranks, a sketch and a payload each
    assert state.traffic == (30 + 6, 30 + 2 * 6)
