"""Servers of parts of the weights: if one is lost, the job ends and is started again; if a worker is lost, the job continues."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from psnode.records import checkpoint
from psnode.records.history import violations
from tests.faults.test_lost_roots import check_restart, flags_of

pytestmark = pytest.mark.serial

Launched = Callable[..., Any]
SERVED = "sharded:servers=3"
SERVER = 4  # of three workers; the other two servers are ranks 0 and 5
REASON = f"the run cannot go on without rank {SERVER}, which has a part of the weights"


def told(job: Any) -> list[tuple[str, int]]:
    return [(event["event"], event["rank"]) for event in job.events() if event["event"] in ("lost", "suspended", "returned")]


@pytest.mark.long
def test_a_job_that_loses_a_server_is_started_again_and_ends_as_an_unbroken_one(launched: Launched, tmp_path: Path) -> None:
    check_restart(launched, tmp_path, SERVED, SERVER, REASON)


@pytest.mark.sweep
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_without_restarts_the_error_names_the_server_and_the_remedies(launched: Launched, number: signal.Signals) -> None:
    flags = [*flags_of(SERVED)[:-1], "--max-steps", "100000", "--pause-deadline", "20"]
    job = launched(3, *flags, launch=["--kill-after", "3"], deadline="10")
    job.wait_for_step(5)
    os.kill(job.pid(SERVER), number)
    code, out = job.end()
    assert code == 3, out
    assert REASON in out
    assert "--resume" in out
    summary = job.summary()
    assert (summary["exit_code"], summary["model_hash"]) == (3, "")
    assert [event["rank"] for event in job.events()] == [SERVER]


def test_a_job_goes_on_without_a_worker(launched: Launched) -> None:
    job = launched(3, *flags_of(SERVED), "--max-steps", "60", launch=["--kill-after", "3"])
    job.wait_for_step(10)
    os.kill(job.pid(2), signal.SIGKILL)
    code, out = job.end()
    assert code == 0, out
    assert told(job) == [("lost", 2)], out
    assert "the run goes on with 2 of 3 workers" in out
    assert job.records()[-1]["contributing"] == 2
    assert violations(job.train_dir) == []


@pytest.mark.long
def test_a_silent_worker_is_suspended_and_comes_back_with_the_weights_of_all_servers(launched: Launched) -> None:
    flags = [*flags_of(SERVED), "--max-steps", "100000", "--hash-every", "1", "--pause-deadline", "20"]
    job = launched(3, *flags, launch=["--kill-after", "3"], deadline="10")
    job.wait_for_step(10)
    os.kill(pid := job.pid(1), signal.SIGSTOP)
    job.wait_for_record(after=10, contributing=2)
    os.kill(pid, signal.SIGCONT)
    job.wait_for_record(after=len(job.records()), contributing=3)
    job.process.send_signal(signal.SIGTERM)
    code, out = job.end()
    assert code == 75, out
    assert told(job) == [("suspended", 1), ("returned", 1)], out
    assert violations(job.train_dir) == []


def test_a_job_without_any_worker_left_stops_with_a_checkpoint_of_all_parts(launched: Launched) -> None:
    job = launched(1, *flags_of(SERVED), "--max-steps", "100000", launch=["--kill-after", "3"])
    job.wait_for_step(5)
    os.kill(job.pid(1), signal.SIGKILL)
    code, out = job.end()
    assert code == 75, out
    newest = checkpoint.Checkpoint.open(checkpoint.latest(job.train_dir))
    assert newest.step == job.summary()["steps"]
    assert len(job.summary()["model_hash"]) == 32
    assert newest.tensors(checkpoint.MODEL)
    assert violations(job.train_dir) == []


def test_a_request_to_stop_that_comes_to_a_server_leaves_a_checkpoint(launched: Launched) -> None:
    job = launched(3, *flags_of(SERVED), "--max-steps", "100000")
    job.wait_for_step(5)
    os.kill(job.pid(SERVER), signal.SIGUSR1)
    code, out = job.end()
    assert code == 75, out
    assert checkpoint.Checkpoint.open(checkpoint.latest(job.train_dir)).step == job.summary()["steps"]
    assert len(job.summary()["model_hash"]) == 32
