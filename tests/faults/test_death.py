"""Workers killed with SIGKILL: the others continue, or stop with a checkpoint from which the job can be resumed."""

from __future__ import annotations

import os
import re
import select
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from psnode.config import Config
from psnode.jobs.job import run
from psnode.records import checkpoint
from tests import halting

pytestmark = pytest.mark.serial

Launched = Callable[..., Any]


def test_the_others_go_on_without_a_killed_worker(launched: Launched, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    job = launched(3, "--max-steps", "60", "--scheme", "qsgd", "--feedback", "ef", *halting.flags(20, gate))
    job.wait_for_step(5)
    os.kill(job.pid(2), signal.SIGKILL)
    gate.touch()
    code, out = job.end()
    assert code == 0, out
    assert job.summary()["steps"] == 60
    records = job.records()
    assert [record["step"] for record in records] == list(range(1, 61))
    contributing = [record["contributing"] for record in records]
    assert contributing == sorted(contributing, reverse=True)
    assert (contributing[0], contributing[-1]) == (3, 2)
    assert [(event["event"], event["rank"]) for event in job.events() if event["event"] != "resharded"] == [("lost", 2)]
    assert "rank 2 is lost: its process has died; the run goes on with 2 of 3 workers\n" in out
    assert out.count("rank 2 is lost") == 1
    assert re.search(r"\d+ of 60 updates lack the gradient of one or more of 3 workers", out)
    newest = checkpoint.Checkpoint.open(checkpoint.latest(job.train_dir))
    assert [newest.has(checkpoint.worker_file(rank)) for rank in (1, 2, 3)] == [True, False, True]


@pytest.mark.long
def test_processes_that_make_batches_end_with_the_worker_that_was_killed(launched: Launched, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    flags = ["--max-steps", "20", "--scheme", "qsgd", "--data-workers", "1", *halting.flags(9, gate)]
    job = launched(2, *flags)
    job.wait_for_step(3)
    killed = job.pid(2)
    others = [os.pidfd_open(pid) for pid in job.pids(2) if pid != killed]
    assert len(others) >= 2, "the server of processes, and one that it has started"
    os.kill(killed, signal.SIGKILL)
    gate.touch()
    for each in others:
        assert select.select([each], [], [], 120)[0], "a process has outlived its worker"
        os.close(each)
    code, out = job.end()
    assert code == 0, out
    assert job.summary()["steps"] == 20
    assert [(event["event"], event["rank"]) for event in job.events()] == [("lost", 2)]


def test_below_the_quorum_a_job_stops_with_a_checkpoint(launched: Launched) -> None:
    job = launched(2, "--max-steps", "100000", "--min-workers", "2", "--scheme", "qsgd", "--feedback", "ef")
    job.wait_for_step(3)
    os.kill(job.pid(1), signal.SIGKILL)
    code, out = job.end()
    assert code == 75, out
    ended = job.summary()
    assert (ended["stop_reason"], ended["exit_code"]) == ("quorum", 75)
    assert checkpoint.Checkpoint.open(checkpoint.latest(job.train_dir)).step == ended["steps"]
    assert [event["event"] for event in job.events()] == ["lost", "quorum"]
    assert "too few workers: 1 of --min-workers 2 are left; the run stops with a checkpoint\n" in out
    same = {
        "batch_size": 8,
        "threads": 1,
        "tensorboard": False,
        "lr": 0.02,
        "eval_freq": 1000,
        "scheme": "qsgd",
        "feedback": "ef",
    }
    more = Config(**same, min_workers=2, max_steps=ended["steps"] + 5, local=2, resume=True, train_dir=job.train_dir)
    assert run(more) == 0
    assert job.events()[2:] == [{**job.events()[2], "event": "begins anew", "rank": 1}]
    assert job.records()[-1]["contributing"] == 2


def test_without_any_worker_the_master_still_leaves_a_checkpoint(launched: Launched) -> None:
    job = launched(1, "--max-steps", "100000")
    job.wait_for_step(3)
    os.kill(job.pid(1), signal.SIGKILL)
    code, out = job.end()
    assert code == 75, out
    assert job.summary()["stop_reason"] == "quorum"
    found = checkpoint.Checkpoint.open(checkpoint.latest(job.train_dir))
    assert found.step == job.summary()["steps"] >= 3
    assert found.tensors(checkpoint.MODEL)
