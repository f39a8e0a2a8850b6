"""Workers that pass weights on: if one is lost, the run continues, and the workers that it served get the weights from rank 0."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from psnode.records.history import violations

pytestmark = pytest.mark.serial

Launched = Callable[..., Any]
FLAGS = ["--topology", "star:down=tree", "--group-by", "layer", "--scheme", "qsgd", "--record-history", "--hash-every", "1"]


def bypassed(job: Any) -> list[tuple[int, str]]:
    return [(event["rank"], event["reason"]) for event in job.events() if event["event"] == "bypassed"]


def test_a_job_goes_on_without_a_worker_that_passed_weights_on(launched: Launched) -> None:
    job = launched(4, *FLAGS, "--max-steps", "60", launch=["--kill-after", "3"])
    job.wait_for_step(10)
    os.kill(job.pid(1), signal.SIGKILL)
    code, out = job.end()
    assert code == 0, out
    assert bypassed(job) == [(1, "rank 0 sends the weights to ranks 3, 4 itself")], out
    assert "the run goes on with 3 of 4 workers" in out
    assert job.records()[-1]["contributing"] == 3
    assert violations(job.train_dir) == []


def test_a_silent_worker_is_alone_suspended_and_comes_back(launched: Launched) -> None:
    job = launched(4, *FLAGS, "--max-steps", "100000", "--pause-deadline", "4", launch=["--kill-after", "3"], deadline="2")
    job.wait_for_step(10)
    os.kill(pid := job.pid(1), signal.SIGSTOP)
    job.wait_for_record(after=10, contributing=3)
    os.kill(pid, signal.SIGCONT)
    job.wait_for_record(after=len(job.records()), contributing=4)
    job.process.send_signal(signal.SIGTERM)
    code, out = job.end()
    assert code == 75, out
    told = [
        (event["event"], event["rank"])
        for event in job.events()
        if event["event"] in ("bypassed", "suspended", "returned", "lost")
    ]
    assert told == [("suspended", 1), ("bypassed", 1), ("returned", 1)], out
    assert violations(job.train_dir) == []
