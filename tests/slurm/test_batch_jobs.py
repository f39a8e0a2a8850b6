"""Exported scripts in a real Slurm: they train, are stopped in time, queued again, and resumed from their checkpoint."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from psnode.records.tensorfile import parse
from tests.conftest import ROOT, Finished
from tests.slurm.conftest import Slurm

STEPS = 30
# in its first start, the first worker waits during the run until the test has opened and closed the pipe
TASK = """
import os
import sys
sys.path.insert(0, {examples!r})
from regression import Regression

class Gated(Regression):
    calls = 0

    def loss(self, model, batch):
        self.calls += 1
        rank = os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("SLURM_PROCID"))
        if self.calls == 12 and rank == "1" and "SLURM_RESTART_COUNT" not in os.environ:
            with open({gate!r}) as gate:
                gate.read()
        return super().loss(model, batch)
"""


@pytest.fixture
def flags(tmp_path: Path) -> list[str]:
    """Return flags of a run that waits at the pipe `gate`, in a directory with a space in its name."""
    os.mkfifo(tmp_path / "gate")
    (tmp_path / "task.py").write_text(TASK.format(examples=str(ROOT / "examples"), gate=str(tmp_path / "gate")))
    return ["--task", "task.py:Gated", "--scheme", "topk", "--max-steps", str(STEPS), "--threads", "1", "--log-interval", "1"]


def weights(folder: Path) -> dict[str, list[float]]:
    found = folder / "checkpoints" / f"step-{STEPS:08}" / "model.safetensors"
    return {name: value.flatten().tolist() for name, value in parse(found.read_bytes(), str(found)).items()}


def exported(psnode: Callable[..., Finished], flags: list[str], *options: str) -> str:
    done = psnode("launch", "--export", "slurm", "-n", "2", *options, "--", "train", *flags, "--train-dir", "runs/a run")
    assert done.code == 0, done.err
    return done.out


@pytest.mark.long
def test_a_job_that_is_warned_goes_back_to_the_queue_and_ends_with_the_weights_of_an_unbroken_one(
    slurm: Slurm, psnode: Callable[..., Finished], flags: list[str], tmp_path: Path
) -> None:
    options = ("--partition", "short", "--gres", "gpu:2", "--time", "30", "--cpus-per-rank", "2", "--workers-per-node", "2")
    job = slurm.submit(exported(psnode, flags, *options, "--job-name", "many"), tmp_path)
    with (tmp_path / "gate").open("w"):  # blocks until the worker opens the pipe too
        running = slurm.facts(job)
        assert (running["JobState"], running["NumNodes"], running["CPUs/Task"]) == ("RUNNING", "1", "2")
        assert running["TresPerNode"] == "gres:gpu:2"
        slurm.signal(job, "USR1")
        log = tmp_path / f"many-{job}.log"
        slurm.wait_for(lambda: "finishing this step and its checkpoint" in log.read_text(), "a stop")
    slurm.wait_for(lambda: slurm.facts(job)["JobState"] in ("COMPLETED", "FAILED", "CANCELLED"), "the end of the job")
    ended = slurm.facts(job)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1"), log.read_text()
    steps = [json.loads(line)["step"] for line in (tmp_path / "runs/a run/metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, STEPS + 1))
    assert not list(tmp_path.glob(".psnode-hosts-*"))
    unbroken = psnode("train", "--local", "2", *flags, "--train-dir", "unbroken")
    assert unbroken.code == 0, unbroken.err
    assert weights(tmp_path / "runs/a run") == weights(tmp_path / "unbroken")


@pytest.mark.long
def test_a_job_that_somebody_cancels_leaves_a_checkpoint_and_does_not_come_back(
    slurm: Slurm, psnode: Callable[..., Finished], flags: list[str], tmp_path: Path
) -> None:
    job = slurm.submit(exported(psnode, flags, "--workers-per-node", "2"), tmp_path)
    with (tmp_path / "gate").open("w"):
        slurm.signal(job, "TERM")
        log = tmp_path / f"psnode-{job}.log"
        slurm.wait_for(lambda: "finishing this step and its checkpoint" in log.read_text(), "a stop")
    slurm.wait_for(lambda: slurm.facts(job)["JobState"] not in ("RUNNING", "COMPLETING"), "the end of the job")
    ended = slurm.facts(job)
    assert (ended["JobState"], ended["Restarts"], ended["ExitCode"]) == ("FAILED", "0", "75:0"), log.read_text()
    assert (tmp_path / "runs/a run/checkpoints/latest").exists()
