"""Requests to stop at a bad moment, and stalls without a fault."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from psnode.records import checkpoint
from psnode.records.history import violations

pytestmark = pytest.mark.serial

Launched = Callable[..., Any]
# at a high rate, losses of old gradients may make the last checkpoint unsound, which is then not the newest
ASP = ["--consistency", "asp", "--scheme", "qsgd", "--feedback", "ef", "--lr", "0.001", "--momentum", "0", "--record-history"]

SLOW_DATA = """
import time
from pathlib import Path
from psnode.tasks.classification import Classification

class Slow(Classification):
    def __init__(self, options=None):
        super().__init__(network="LeNet", dataset="digits", data_dir=None, download=False, seed=1, options={})

    def train_data(self):
        Path(__file__).with_name("building").touch()
        while not Path(__file__).with_name("go").exists():
            time.sleep(0.05)
        return super().train_data()
"""


@pytest.mark.long
def test_a_stopped_worker_does_not_keep_an_asynchronous_job_from_its_checkpoint(launched: Launched) -> None:
    """Check that an asp job with a stopped worker ends with a checkpoint. No round waits for this worker, and a job that was
    asked to stop has no time to wait.
    """
    job = launched(3, *ASP, "--max-steps", "1000000")
    job.wait_for_step(10)
    os.kill(job.pid(2), signal.SIGSTOP)
    job.wait_for_step(40)
    job.process.send_signal(signal.SIGTERM)
    code, out = job.end()
    assert code == 75, out
    assert [(event["event"], event["rank"]) for event in job.events()] == [("suspended", 2)]
    found = checkpoint.Checkpoint.open(checkpoint.latest(job.train_dir))
    assert found.step == job.summary()["steps"]
    assert [found.has(checkpoint.worker_file(rank)) for rank in (1, 2, 3)] == [True, False, True]
    assert job.summary()["stop_reason"] == "signal"
    assert violations(job.train_dir, None) == []


@pytest.mark.long
def test_a_job_whose_host_stands_still_goes_on_as_if_nothing_had_happened(launched: Launched) -> None:
    """Check that nothing is lost if all processes are stopped for longer than every deadline and then continued, the master
    first.
    """
    job = launched(2, "--max-steps", "100000", "--deadline", "3", "--pause-deadline", "5", "--record-history")
    job.wait_for_step(10)
    pids = [job.pid(rank) for rank in (0, 1, 2)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(8)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    before = len(job.records())
    job.wait_for_step(before + 20)
    job.process.send_signal(signal.SIGTERM)
    code, out = job.end()
    assert code == 75, out
    assert job.events() == []
    assert violations(job.train_dir) == []


def test_a_job_that_is_told_to_stop_while_it_builds_its_data_stops(launched: Launched, tmp_path: Path) -> None:
    task = tmp_path / "task.py"
    task.write_text(SLOW_DATA)
    job = launched(2, "--task", str(task))
    end = time.monotonic() + 300
    while not (tmp_path / "building").exists() and time.monotonic() < end:
        time.sleep(0.1)
    job.process.send_signal(signal.SIGTERM)
    code, out = job.end()  # the file "go" never appears
    assert code == 75, out
    assert "stopped by SIGTERM before the first step" in out
    assert not (job.train_dir / checkpoint.CHECKPOINTS).exists()
