"""Spare ranks take the places of workers that are killed or stop answering."""

from __future__ import annotations

import json
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
from tests.faults.test_suspended import wait_for

pytestmark = pytest.mark.serial

Launched = Callable[..., Any]
FLAGS = ["--scheme", "qsgd", "--feedback", "ef", "--record-history", "--hash-every", "5", "--max-steps", "100000"]


def told(job: Any) -> list[tuple[str, int | None]]:
    """Return the events with their ranks, except "resharded": the end of an epoch, when it is recorded, may fall anywhere in
    the run.
    """
    return [(event["event"], event["rank"]) for event in job.events() if event["event"] != "resharded"]


@pytest.mark.sweep
@pytest.mark.parametrize("downlink", ["dense", "bf16"])
def test_a_spare_takes_the_place_of_a_killed_worker(launched: Launched, downlink: str) -> None:
    """Check that a spare replaces a killed worker. It has followed every version, and its weights are compared like all
    others. A second death ends the job.
    """
    job = launched(2, *FLAGS, "--spares", "1", "--min-workers", "2", "--downlink", downlink)
    job.wait_for_step(10)
    os.kill(job.pid(1), signal.SIGKILL)
    promoted = wait_for(job, "promoted")
    job.wait_for_step(promoted + 30)
    os.kill(job.pid(3), signal.SIGKILL)
    code, out = job.end()
    assert code == 75, out
    assert told(job) == [("lost", 1), ("promoted", 3), ("lost", 3), ("quorum", None)]
    contributing = [record["contributing"] for record in job.records()]
    assert contributing[:10] == [2] * 10
    assert contributing[promoted : promoted + 30] == [2] * 30  # from the first round after the one in which the worker died
    ranks = {
        rank
        for line in read_records(job.train_dir / "history.jsonl")
        if line["step"] > promoted
        for g in line["groups"]
        for rank, *_ in g
    }
    assert ranks == {2, 3}
    assert violations(job.train_dir) == []
    assert job.summary()["stop_reason"] == "quorum"


@pytest.mark.long
def test_who_returns_to_a_taken_place_is_a_spare(launched: Launched) -> None:
    job = launched(2, *FLAGS, "--spares", "1", "--deadline", "8", "--pause-deadline", "20", "--downlink", "bf16")
    job.wait_for_step(10)
    stopped = job.pid(2)
    os.kill(stopped, signal.SIGSTOP)
    job.wait_for_step(wait_for(job, "promoted") + 10)
    os.kill(stopped, signal.SIGCONT)
    job.wait_for_step(wait_for(job, "returned") + 10)
    os.kill(job.pid(1), signal.SIGKILL)
    lost = wait_for(job, "lost")
    job.wait_for_record(lost + 1, contributing=2)
    job.process.send_signal(signal.SIGTERM)
    code, out = job.end()
    assert code == 75, out
    assert told(job) == [("suspended", 2), ("promoted", 3), ("returned", 2), ("lost", 1), ("promoted", 2)]
    assert violations(job.train_dir) == []
    found = checkpoint.Checkpoint.open(checkpoint.latest(job.train_dir))
    assert [found.has(checkpoint.worker_file(rank)) for rank in (1, 2, 3)] == [False, True, True]


def test_spares_who_are_not_needed_change_nothing(launched: Launched, tmp_path: Path) -> None:
    job = launched(2, "--scheme", "qsgd", "--feedback", "ef", "--max-steps", "12", "--spares", "1")
    code, out = job.end()
    assert code == 0, out
    assert json.loads((job.train_dir / "config.json").read_bytes())["workers"] == 2
    same = {"batch_size": 8, "threads": 1, "tensorboard": False, "lr": 0.02, "eval_freq": 1000}
    assert run(Config(**same, scheme="qsgd", feedback="ef", max_steps=12, local=2, train_dir=tmp_path / "none")) == 0
    assert job.summary()["model_hash"] == json.loads((tmp_path / "none" / "summary.json").read_bytes())["model_hash"]


TORN = """
import os
import numpy as np
from psnode.tasks.classification import Classification

class Torn:
    def __init__(self, data):
        self.data, self.count = data, 0
    def __len__(self):
        return len(self.data)
    def batch(self, indices, rng):
        self.count += rng.bit_generator.state != np.random.default_rng(0).bit_generator.state  # not the look before the start
        if self.count == 5 and os.environ["OMPI_COMM_WORLD_RANK"] == "1":
            raise OSError(5, "the disk of this host is broken")
        return self.data.batch(indices, rng)

class Digits(Classification):
    def __init__(self, options=None):
        super().__init__("LeNet", "digits", seed=1)
    def train_data(self):
        return Torn(super().train_data())
"""


@pytest.mark.long
@pytest.mark.parametrize("rule", [(), ("--consistency", "asp")], ids=["bsp", "asp"])
def test_a_round_of_nobody_goes_on_with_a_spare_and_no_batch_is_skipped(
    launched: Launched, tmp_path: Path, rule: tuple[str, ...]
) -> None:
    """Check that a job whose only worker fails continues with a spare, and ends with the weights of an undisturbed run.
    LeNet draws no random numbers.
    """
    (tmp_path / "task.py").write_text(TORN)
    how = ["--task", str(tmp_path / "task.py"), "--spares", "1"]
    job = launched(1, *how, "--scheme", "dense", "--downlink", "bf16", "--max-steps", "9", "--seed", "1", "--no-overlap", *rule)
    code, out = job.end()
    assert code == 0, out
    assert [record["contributing"] for record in job.records()] == [1] * 9
    assert told(job) == [("lost", 1), ("promoted", 2)]
    assert [event["step"] for event in job.events()] == [4, 4]
    same: dict[str, Any] = {"batch_size": 8, "threads": 1, "tensorboard": False, "lr": 0.02, "eval_freq": 1000, "seed": 1}
    same |= {"consistency": rule[1]} if rule else {}
    undisturbed = Config(**same, scheme="dense", downlink="bf16", max_steps=9, local=1, train_dir=tmp_path / "undisturbed")
    assert run(undisturbed) == 0
    ended = json.loads((tmp_path / "undisturbed" / "summary.json").read_bytes())
    assert job.summary()["model_hash"] == ended["model_hash"]
