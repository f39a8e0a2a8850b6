"""Workers that stop answering: stopped with SIGSTOP, suspended, continued with SIGCONT, and readmitted."""

from __future__ import annotations

import os
import re
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
FLAGS = ["--scheme", "qsgd", "--feedback", "ef", "--deadline", "6", "--record-history", "--hash-every", "10"]
# The delayed round may be a round that compares weights, to which the deadline of pauses applies.
FLAGS += ["--pause-deadline", "20"]


def wait_for(job: Any, event: str) -> int:
    """Return the number of steps at the time when `event` is recorded."""
    end = time.monotonic() + 300
    while time.monotonic() < end and job.process.poll() is None:
        found = [entry for entry in job.events() if entry["event"] == event]
        if found:
            return int(found[-1]["step"])
        time.sleep(0.05)
    pytest.fail(f"no worker was {event}: {job.events()}")


@pytest.mark.sweep
@pytest.mark.parametrize("downlink", ["dense", "bf16"])
def test_a_stopped_worker_is_put_aside_and_let_in_again(launched: Launched, downlink: str) -> None:
    """Check that a returning worker gets whole weights in place of the changes that it missed: hashes of all replicas are
    compared every ten steps.
    """
    job = launched(3, *FLAGS, "--max-steps", "100000", "--downlink", downlink)
    job.wait_for_step(5)
    pid = job.pid(2)
    os.kill(pid, signal.SIGSTOP)
    aside = wait_for(job, "suspended")
    job.wait_for_step(aside + 20)
    os.kill(pid, signal.SIGCONT)
    back = wait_for(job, "returned")
    job.wait_for_record(back, contributing=3)
    job.process.send_signal(signal.SIGTERM)
    code, out = job.end()
    assert code == 75, out
    assert re.search(r"rank 2 suspended: not heard of for \d+\.\d s", out), out
    told = [event["event"] for event in job.events() if event["rank"] == 2]
    assert told[:2] == ["suspended", "returned"]
    contributing = [record["contributing"] for record in job.records()]
    assert max(contributing[:aside]) == 3
    assert max(contributing[aside + 2 : aside + 19]) == 2
    assert violations(job.train_dir) == []


@pytest.mark.long
def test_a_stall_of_nine_seconds_leaves_nobody_out_of_a_synchronous_run(launched: Launched) -> None:
    """Check that without --deadline every round includes both workers, even if one stalls for nine seconds while steps take
    milliseconds.
    """
    job = launched(2, "--scheme", "dense", "--max-steps", "100000", deadline="")
    job.wait_for_step(20)
    pid = job.pid(2)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(9)  # the stall
    os.kill(pid, signal.SIGCONT)
    job.wait_for_step(len(job.records()) + 10)
    job.process.send_signal(signal.SIGTERM)
    code, out = job.end()
    assert code == 75, out
    assert job.events() == []
    assert {record["contributing"] for record in job.records()} == {2}
    assert "lack the gradient" not in out


@pytest.mark.long
def test_a_silent_worker_that_no_round_waits_for_is_put_aside_and_returns(launched: Launched) -> None:
    """Check that checkpoints are made in order without the suspended worker, and that it delays none after its return."""
    rule = [
        "--consistency",
        "kofn",
        "--num-aggregate",
        "2",
        "--eval-freq",
        "20",
        "--keep-last",
        "0",
        "--deadline",
        "4",
        "--pause-deadline",
        "12",
    ]
    job = launched(3, *FLAGS, *rule, "--max-steps", "1000000")
    job.wait_for_step(10)
    pid = job.pid(3)
    os.kill(pid, signal.SIGSTOP)
    job.wait_for_step(wait_for(job, "suspended") + 20)
    os.kill(pid, signal.SIGCONT)
    back = wait_for(job, "returned")
    job.wait_for_step(back + 60)
    job.process.send_signal(signal.SIGTERM)
    code, out = job.end()
    assert code == 75, out
    told = [event["event"] for event in job.events() if event["rank"] == 3 and event["event"] != "left out"]
    assert told[:2] == ["suspended", "returned"]
    steps = [checkpoint.step_of(path) for path in checkpoint.complete(job.train_dir)]
    assert steps == [*range(20, steps[-1], 20), steps[-1]]
    assert steps[-1] == job.summary()["steps"]  # `latest` may name an older one, if the loss of the last step is too high
    assert violations(job.train_dir) == []


@pytest.mark.long
def test_when_all_workers_stop_the_master_leaves_a_checkpoint_and_no_process(launched: Launched) -> None:
    job = launched(2, *FLAGS, "--max-steps", "100000", "--pause-deadline", "4", launch=["--kill-after", "3"])
    job.wait_for_step(5)
    for pid in [job.pid(rank) for rank in (1, 2)]:
        os.kill(pid, signal.SIGSTOP)
    members = job._processes()
    code, out = job.end()
    assert "quorum" in [event["event"] for event in job.events()], out
    assert job.summary()["stop_reason"] == "quorum"
    assert violations(job.train_dir) == []
    assert code != 0
    end = time.monotonic() + 120
    while (left := [pid for pid in members if runs(pid, job.train_dir)]) and time.monotonic() < end:
        time.sleep(0.1)
    assert left == []


def runs(pid: int, train_dir: Path) -> bool:
    """Return True if the process still belongs to the job: it is neither a zombie, which has no command line, nor a reused id."""
    try:
        return str(train_dir).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
