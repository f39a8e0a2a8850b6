"""A job that dies is started again by `psnode launch --restarts`, and ends as an undisturbed job does."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from psnode.config import Config
from psnode.jobs.job import run
from psnode.records.history import violations
from psnode.records.metrics import read_records
from tests import halting

pytestmark = pytest.mark.serial

Launched = Callable[..., Any]


def unbroken(train_dir: Path, **task: Any) -> str:
    settings: dict[str, Any] = {"batch_size": 8, "threads": 1, "tensorboard": False, "lr": 0.02, "eval_freq": 5, "local": 2}
    run(Config(**settings, **task, train_dir=train_dir, scheme="qsgd", feedback="ef", max_steps=40))
    return str(json.loads((train_dir / "summary.json").read_bytes())["model_hash"])


@pytest.mark.sweep
@pytest.mark.parametrize("killed", [[0], [0, 1, 2]], ids=["the master", "all"])
def test_a_killed_job_goes_on_from_its_checkpoint_and_ends_as_an_unbroken_one(
    launched: Launched, tmp_path: Path, killed: Sequence[int]
) -> None:
    flags = ["--scheme", "qsgd", "--feedback", "ef", "--max-steps", "40", "--eval-freq", "5", "--record-history"]
    gate = tmp_path / "gate"
    job = launched(2, *flags, *halting.flags(20, gate), launch=["--restarts", "1", "--kill-after", "3"])
    job.wait_for_step(16)  # the checkpoint of step 15 is due, and waits until that of step 10 is complete
    for pid in [job.pid(rank) for rank in killed]:
        os.kill(pid, signal.SIGKILL)
    gate.touch()
    code, out = job.end()
    assert code == 0, out
    assert "started again from its last checkpoint (1 of 1)" in out
    assert violations(job.train_dir) == []
    starts = [line["step"] for line in read_records(job.train_dir / "history.jsonl") if "parameters" in line]
    assert len(starts) == 2
    assert starts[1] >= 10
    assert job.summary()["model_hash"] == unbroken(tmp_path / "unbroken", **halting.settings(20, gate))
    assert [record["step"] for record in job.records()] == list(range(1, 41))


def test_a_job_that_was_asked_to_stop_is_not_started_again(launched: Launched) -> None:
    job = launched(1, "--max-steps", "100000", launch=["--restarts", "3"])
    job.wait_for_step(3)
    job.process.send_signal(signal.SIGTERM)
    code, out = job.end()
    assert code == 75, out
    assert "started again" not in out


def test_what_would_end_in_the_same_way_again_is_not_started_again(launched: Launched) -> None:
    job = launched(1, "--max-steps", "50", "--lr", "1e12", launch=["--restarts", "3"])
    code, out = job.end()
    assert code == 4, out
    assert "started again" not in out
