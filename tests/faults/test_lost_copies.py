"""Workers that all update the same weights: the job continues without a lost worker, and the remaining workers stay equal."""

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
from psnode.records.metrics import read_records
from tests import halting
from tests.faults import dying

pytestmark = pytest.mark.serial

Launched = Callable[..., Any]
CENTRAL, COPIES = "star", "gather"
FLAGS = ["--group-by", "layer", "--scheme", "qsgd", "--feedback", "ef", "--record-history", "--hash-every", "1"]
COPIED = [*FLAGS, "--topology", COPIES]


def weights(train_dir: Path) -> dict[str, Any]:
    newest = checkpoint.latest(train_dir)
    assert newest is not None
    return checkpoint.Checkpoint.open(newest).tensors(checkpoint.MODEL)


def added(train_dir: Path) -> list[Any]:
    """Return by version the gradients added to every group."""
    return [line["groups"] for line in read_records(train_dir / "history.jsonl") if "groups" in line]


def differences(one: Path, other: Path) -> list[str]:
    first, second = weights(one), weights(other)
    return [name for name, value in first.items() if not value.equal(second[name])]


def lost(job: Any) -> list[int]:
    return [event["rank"] for event in job.events() if event["event"] == "lost"]


@pytest.mark.sweep
@pytest.mark.parametrize("rank", [1, 2])
def test_a_job_that_loses_a_worker_goes_on_as_a_central_one_does(launched: Launched, tmp_path: Path, rank: int) -> None:
    """Compare a gather and a star that lose the same worker. All workers wait before batch 20 when it is killed, so that the
    same gradients count in both jobs.

    If rank 1 is lost, another worker takes over the reports for all workers.
    """
    jobs = []
    for topology in (CENTRAL, COPIES):
        gate = tmp_path / f"gate-{topology}"
        flags = [*FLAGS, "--topology", topology, "--downlink", "dense", "--max-steps", "30", "--eval-freq", "5"]
        job = launched(4, *flags, *halting.flags(20, gate))
        job.wait_for_step(19)
        os.kill(job.pid(rank), signal.SIGKILL)
        gate.touch()
        code, out = job.end()
        assert code == 0, out
        assert "the run goes on with 3 of 4 workers" in out
        assert violations(job.train_dir) == []
        assert lost(job) == [rank]
        assert [record["contributing"] for record in job.records()].count(3) >= 10
        job.train_dir = job.train_dir.rename(tmp_path / topology)
        jobs.append(job)
    one, other = (job.train_dir for job in jobs)
    assert added(one) == added(other)
    assert differences(one, other) == []
    assert jobs[0].summary()["model_hash"] == jobs[1].summary()["model_hash"]


@pytest.mark.long
def test_a_worker_that_dies_while_it_sends_leaves_equal_weights(launched: Launched) -> None:
    """Check that all workers end with equal weights if only some groups of the dying worker's last gradient have left, and
    these only to some of the others.
    """
    job = launched(4, *COPIED, "--max-steps", "25", *dying.flags(2, 12))
    code, out = job.end()
    assert code == 0, out
    assert "the run goes on with 3 of 4 workers" in out
    assert violations(job.train_dir) == []
    assert lost(job) == [2]
    assert [record["contributing"] for record in job.records()][-13:] == [3] * 13


def test_what_one_worker_alone_has_of_the_last_gradient_counts_at_all(launched: Launched) -> None:
    """Check that the groups which only rank 1 has received are added on all workers. Rank 2 dies after it has sent them,
    before its gradient of the first layer.
    """
    job = launched(4, *COPIED, "--max-steps", "15", *dying.flags(2, 8, reaches=2))
    code, out = job.end()
    assert code == 0, out
    assert lost(job) == [2]
    assert violations(job.train_dir) == []
    ranks = [[[rank for rank, _, _ in group] for group in version] for version in added(job.train_dir)]
    everybody, others = [1, 2, 3, 4], [1, 3, 4]
    assert all(group == everybody for version in ranks[:7] for group in version)
    assert sorted(ranks[7]) == [everybody] * (len(ranks[7]) - 1) + [others]
    assert all(group == others for version in ranks[8:] for group in version)


def test_two_workers_that_die_at_once_are_one_and_then_the_other(launched: Launched) -> None:
    job = launched(4, *COPIED, "--max-steps", "100000", "--min-workers", "2")
    job.wait_for_step(8)
    for pid in [job.pid(rank) for rank in (1, 3)]:
        os.kill(pid, signal.SIGKILL)
    job.wait_for_record(8, contributing=2)
    job.process.send_signal(signal.SIGTERM)
    code, out = job.end()
    assert code == 75, out
    assert "the run goes on with 2 of 4 workers" in out
    assert sorted(lost(job)) == [1, 3]
    assert violations(job.train_dir) == []


def test_too_few_workers_leave_a_checkpoint_and_the_last_one_cannot_be_lost(launched: Launched) -> None:
    job = launched(2, *COPIED, "--max-steps", "100000", "--min-workers", "2")
    job.wait_for_step(5)
    os.kill(job.pid(2), signal.SIGKILL)
    code, out = job.end()
    assert code == 75, out
    assert "1 of --min-workers 2 are left" in out
    newest = checkpoint.Checkpoint.open(checkpoint.latest(job.train_dir))
    assert newest.step == job.summary()["steps"]
    assert violations(job.train_dir) == []


@pytest.mark.long
def test_a_silent_worker_is_put_aside_for_good(launched: Launched) -> None:
    """Check that a worker which was stopped too long is told to leave when it runs again, and that nothing it has sent until
    then counts.
    """
    job = launched(3, *COPIED, "--max-steps", "100000", "--pause-deadline", "20", deadline="10")
    job.wait_for_step(8)
    pid = job.pid(2)
    os.kill(pid, signal.SIGSTOP)
    job.wait_for_record(8, contributing=2)
    behind = len(job.records())
    job.wait_for_step(behind + 10)
    os.kill(pid, signal.SIGCONT)
    end = time.monotonic() + 300
    while job.pids(2) and time.monotonic() < end:
        time.sleep(0.05)
    assert job.pids(2) == []
    job.wait_for_step(len(job.records()) + 5)
    job.process.send_signal(signal.SIGTERM)
    code, out = job.end()
    assert code == 75, out
    [event] = [event for event in job.events() if event["event"] != "resharded"]
    assert (event["event"], event["rank"]) == ("lost", 2)
    assert "cannot come back" in event["reason"]
    assert {record["contributing"] for record in job.records()[behind:]} == {2}
    assert violations(job.train_dir) == []
