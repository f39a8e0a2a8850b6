"""Workers that update a part of the weights: if one is lost, the job ends, and continues from its last checkpoint when it is
started again.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from psnode.config import Config
from psnode.jobs.job import run
from psnode.records import checkpoint
from psnode.records.history import violations
from psnode.records.metrics import read_records
from tests import halting

pytestmark = pytest.mark.serial

Launched = Callable[..., Any]
REASON = "the run cannot go on without rank 2, which has a part of the weights"


def flags_of(topology: str) -> list[str]:
    return ["--topology", topology, "--group-by", "layer", "--scheme", "qsgd", "--feedback", "ef", "--record-history"]


MESHES = ("mesh", "mesh:master=auto")
FLAGS = flags_of("mesh")


def unbroken(train_dir: Path, **task: Any) -> dict[str, Any]:
    """Return the weights of an undisturbed run in one process, in which rank 0 updates all weights."""
    settings: dict[str, Any] = {"batch_size": 8, "threads": 1, "tensorboard": False, "lr": 0.02, "eval_freq": 5, "local": 3}
    settings |= {"group_by": "layer", "scheme": "qsgd", "feedback": "ef", "norm_cap": 0.0}
    assert run(Config(**settings, **task, train_dir=train_dir, max_steps=28)) == 0
    return weights(train_dir)


def weights(train_dir: Path) -> dict[str, Any]:
    newest = checkpoint.latest(train_dir)
    assert newest is not None
    return checkpoint.Checkpoint.open(newest).tensors(checkpoint.MODEL)


def check_restart(launched: Launched, tmp_path: Path, topology: str, lost: int, reason: str) -> None:
    """Kill rank `lost` of a job of three workers. Check that the job is started again for `reason`, and ends with the
    weights of an unbroken run.
    """
    gate = tmp_path / "gate"
    flags = [*flags_of(topology), "--max-steps", "28", "--eval-freq", "5", *halting.flags(20, gate)]
    job = launched(3, *flags, launch=["--restarts", "1", "--kill-after", "3"])
    job.wait_for_step(16)
    os.kill(job.pid(lost), signal.SIGKILL)
    gate.touch()
    code, out = job.end()
    assert code == 0, out
    assert reason in out
    assert "started again from its last checkpoint (1 of 1)" in out
    assert violations(job.train_dir) == []
    starts = [line["step"] for line in read_records(job.train_dir / "history.jsonl") if "parameters" in line]
    assert len(starts) == 2
    assert starts[1] >= 10
    expected = unbroken(tmp_path / "unbroken", **halting.settings(20, gate))
    assert [name for name, value in weights(job.train_dir).items() if not value.equal(expected[name])] == []


@pytest.mark.sweep
@pytest.mark.parametrize("topology", MESHES)
def test_a_job_that_loses_a_worker_is_started_again_and_ends_as_an_unbroken_one(
    launched: Launched, tmp_path: Path, topology: str
) -> None:
    check_restart(launched, tmp_path, topology, 2, REASON)


@pytest.mark.sweep
@pytest.mark.parametrize(("topology", "number"), [("mesh", signal.SIGKILL), *((topology, signal.SIGSTOP) for topology in MESHES)])
def test_without_restarts_the_error_names_the_rank_and_the_remedies(
    launched: Launched, topology: str, number: signal.Signals
) -> None:
    flags = [*flags_of(topology)[:-1], "--max-steps", "100000", "--pause-deadline", "4"]
    job = launched(2, *flags, launch=["--kill-after", "3"], deadline="2")
    job.wait_for_step(5)
    os.kill(job.pid(2), number)
    code, out = job.end()
    assert code == 3, out
    assert REASON in out
    assert "--resume" in out
    summary = job.summary()
    assert (summary["exit_code"], summary["model_hash"]) == (3, "")
    assert [event["rank"] for event in job.events()] == [2]


def test_a_request_to_stop_leaves_a_checkpoint_with_all_parts(launched: Launched, tmp_path: Path) -> None:
    job = launched(2, *FLAGS, "--max-steps", "100000")
    job.wait_for_step(5)
    job.process.send_signal(signal.SIGTERM)
    code, out = job.end()
    assert code == 75, out
    summary = job.summary()
    assert checkpoint.Checkpoint.open(checkpoint.latest(job.train_dir)).step == summary["steps"]
    assert len(summary["model_hash"]) == 32
    assert violations(job.train_dir) == []
