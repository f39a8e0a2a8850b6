"""Group size, scheme and topology that a job chooses for itself. The choice is recorded and kept by --resume, and the run gives
the same weights as a run started with that choice.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from psnode.config import Config
from psnode.jobs.job import run
from psnode.master.start.autotune import FEWEST_STEPS
from psnode.plans.rule import DEFAULT_GROUP_BYTES

pytestmark = pytest.mark.serial

# 1.3 million weights make several groups; running statistics and dropout would show effects of a rehearsal
TASK = """
from torch import nn
from psnode.tasks.classification import Classification

class Mine(Classification):
    def __init__(self, options=None):
        super().__init__("LeNet", "digits", seed=1)
    def model(self):
        layers = nn.Linear(784, 1600), nn.BatchNorm1d(1600), nn.Dropout(0.2), nn.Linear(1600, 64), nn.ReLU(), nn.Linear(64, 10)
        return nn.Sequential(nn.Flatten(), *layers)
"""


def contents(train_dir: Path, step: int) -> dict[str, str]:
    """Return the hashes of a checkpoint's files: weights, statistics, momentum, residuals."""
    folder = train_dir / "checkpoints" / f"step-{step:08}"
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*.safetensors")
    }


def group_bytes(train_dir: Path) -> int:
    return int(json.loads((train_dir / "config.json").read_bytes())["config"]["group_bytes"])


@pytest.mark.long
def test_a_calibrated_run_is_the_run_with_what_was_chosen_and_resumes_with_it(mpirun: Any, tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(TASK)
    auto, fixed = tmp_path / "auto", tmp_path / "fixed"
    config = Config(
        task=f"{tmp_path / 'task.py'}:Mine", batch_size=8, threads=1, lr=0.05, tensorboard=False, eval_freq=2, hash_every=1,
        keep_last=0, scheme="topk:ratio=0.02",
    )  # fmt: skip
    flags = ["--task", config.task, "--batch-size", 8, "--threads", 1, "--lr", 0.05, "--no-tensorboard", "--eval-freq", 2]
    flags += ["--keep-last", 0, "--hash-every", 1, "--scheme", config.scheme, "--train-dir", auto, "--max-steps", FEWEST_STEPS]
    job = mpirun.start(3, ["-m", "psnode", "train", *flags])
    end = time.monotonic() + 300
    while not (auto / "checkpoints" / "latest").exists() and time.monotonic() < end and job.process.poll() is None:
        time.sleep(0.05)
    os.kill(job.rank_pids()[0], signal.SIGUSR1)
    assert job.wait(300).code == 75
    [event] = [json.loads(line) for line in (auto / "events.jsonl").read_text().splitlines()]
    size = group_bytes(auto)
    assert event["event"] == "calibrated"
    assert f"groups of {size} bytes" in event["reason"]
    tried = re.findall(r"([\d.]+) ms with (\d+)", event["reason"])
    assert int(tried[0][1]) == DEFAULT_GROUP_BYTES
    assert len(tried) >= 2 or float(tried[0][0]) > 1000  # a second size was tried, unless this machine is too busy

    assert run(replace(config, train_dir=fixed, max_steps=2, group_bytes=size, local=2)) == 0
    assert len(contents(auto, 2)) == 6  # the model, the optimizer, y, norms of pushes, and the memories of two workers
    assert contents(auto, 2) == contents(fixed, 2)

    stopped = json.loads((auto / "summary.json").read_bytes())["steps"]
    assert run(replace(config, train_dir=auto, max_steps=stopped + 1, resume=True, local=2)) == 0
    assert group_bytes(auto) == size
    assert len((auto / "events.jsonl").read_text().splitlines()) == 1


# two segments of reentrant checkpointing use one part: its gradient is complete after the pass
TWICE = """
from torch import nn
from torch.utils.checkpoint import checkpoint
from psnode.tasks.classification import Classification

class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(784, 800), nn.Linear(800, 800), nn.Linear(800, 10)
    def forward(self, x):
        x = self.first(x.flatten(1)).relu()
        for _ in range(2):
            x = checkpoint(self.inner, x, use_reentrant=True).relu()
        return self.last(x)

class Mine(Classification):
    def __init__(self, options=None):
        super().__init__("LeNet", "digits", seed=1)
    def model(self):
        return Twice()
"""


@pytest.mark.long
def test_a_model_whose_gradients_come_in_pieces_is_calibrated_too(mpirun: Any, tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(TWICE)
    folder = tmp_path / "run"
    flags = ["--task", f"{tmp_path / 'task.py'}:Mine", "--batch-size", 8, "--threads", 1, "--lr", 0.05, "--no-tensorboard"]
    flags += ["--train-dir", folder, "--max-steps", FEWEST_STEPS, "--eval-freq", 1]
    job = mpirun.start(3, ["-m", "psnode", "train", *flags])
    end = time.monotonic() + 300
    while not (folder / "checkpoints" / "latest").exists() and time.monotonic() < end and job.process.poll() is None:
        time.sleep(0.05)
    if job.process.poll() is None:
        os.kill(job.rank_pids()[0], signal.SIGUSR1)
    finished = job.wait(300)
    assert finished.code == 75, finished
    assert '"calibrated"' in (folder / "events.jsonl").read_text()


@pytest.mark.long
def test_a_scheme_chosen_by_trial_is_recorded_and_trains_as_if_it_had_been_named(mpirun: Any, tmp_path: Path) -> None:
    """Compare the checkpoints with those of a run under the named scheme: trial steps leave no trace in weights, statistics,
    memories or random numbers.
    """
    (tmp_path / "task.py").write_text(TASK)
    auto, fixed = tmp_path / "auto", tmp_path / "fixed"
    config = Config(
        task=f"{tmp_path / 'task.py'}:Mine", batch_size=8, threads=1, lr=0.05, tensorboard=False, eval_freq=4, hash_every=1,
        keep_last=0, max_steps=12,
    )  # fmt: skip
    flags = ["--task", config.task, "--batch-size", 8, "--threads", 1, "--lr", 0.05, "--no-tensorboard", "--eval-freq", 4]
    flags += ["--keep-last", 0, "--hash-every", 1, "--max-steps", 12, "--plan", "auto", "--train-dir", auto]
    assert mpirun(3, ["-m", "psnode", "train", *flags, "--stop-after", 4]).code == 0
    record = json.loads((auto / "config.json").read_bytes())
    name = record["config"]["scheme"]
    assert name in ("polar-2bit", "bf16", "dense")
    events = [json.loads(line) for line in (auto / "events.jsonl").read_text().splitlines()]
    assert f"a step of {name} takes" in events[0]["reason"]
    assert record["prediction"]["source"] == "trial steps"
    assert record["links"].keys() == {"round_trip", "up", "down"} and min(record["links"].values()) > 0
    assert mpirun(3, ["-m", "psnode", "train", *flags, "--resume"]).code == 0  # with the whole command, and without trials
    assert run(replace(config, train_dir=fixed, scheme=name, local=2)) == 0
    assert len(contents(fixed, 12)) == 5 + (name != "dense")
    assert contents(auto, 12) == contents(fixed, 12)
    summary = json.loads((auto / "summary.json").read_bytes())
    assert summary["prediction"]["step"] == record["prediction"]["step"]
    assert json.loads((auto / "config.json").read_bytes())["links"] == record["links"]


@pytest.mark.long
def test_a_job_decides_on_its_topology_and_trains_as_if_it_had_been_named(mpirun: Any, tmp_path: Path) -> None:
    flags = ["--max-steps", 3, "--threads", 1, "--no-tensorboard", "--scheme", "qsgd", "--train-dir", tmp_path / "auto"]
    done = mpirun(4, ["-m", "psnode", "train", "--topology", "auto", *flags])
    assert done.code == 0, done
    saved = json.loads((tmp_path / "auto" / "config.json").read_bytes())
    topology, links = saved["config"]["topology"], saved["links"]
    assert topology != "auto"
    assert min(links["up"], links["down"]) > 0
    found, rates = [json.loads(line)["reason"] for line in (tmp_path / "auto" / "events.jsonl").read_text().splitlines()]
    assert re.match(rf"topology {re.escape(topology)}: a step is to take [\d,.]+ m?s", found)
    assert "under star" in found or topology == "star"
    assert rates.startswith("the master's link: ")
    assert saved["prediction"]["workers"] == 3

    named = Config(
        train_dir=tmp_path / "named", max_steps=3, threads=1, tensorboard=False, scheme="qsgd", local=3, topology=topology
    )
    assert run(named) == 0
    assert contents(tmp_path / "auto", 3) == contents(tmp_path / "named", 3)
