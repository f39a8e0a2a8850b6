"""A forward pass that begins before its weights have arrived gives the same weights, statistics and checkpoints."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from psnode import cli

pytestmark = pytest.mark.serial

TASK = """
import torch
from torch import nn
from psnode.tasks.classification import Classification

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.tied = nn.Linear(784, 64), nn.BatchNorm1d(64), nn.Linear(64, 64)
        self.drop, self.last = nn.Dropout(0.2), nn.Linear(64, 10)

    def forward(self, x):
        x = self.norm(self.first(x.flatten(1))).relu()
        x = nn.functional.linear(self.tied(x).relu(), self.tied.weight.t())
        return self.last(self.drop(x))

class Mine(Classification):
    def __init__(self, options=None):
        super().__init__("LeNet", "digits", seed=1)
    def model(self):
        return Net()
"""


def trained(mpirun: Any, task: Path, train_dir: Path, *flags: object) -> dict[str, Any]:
    """Train, without mpirun in this process; return hashes of all checkpoint files, by path, and of the final weights."""
    common = [
        "train",
        "--batch-size",
        8,
        "--threads",
        1,
        "--no-tensorboard",
        "--eval-freq",
        3,
        "--group-by",
        "layer",
    ]
    scheme = ["--scheme", "topk:ratio=0.05", "--downlink", "topk:ratio=0.05", "--min-compress-bytes", 64, "--hash-every", 4]
    words = [str(word) for word in [*common, *scheme, "--task", f"{task}:Mine", "--train-dir", train_dir, *flags]]
    if mpirun is None:
        assert cli.main([*words, "--local", "2"]) == 0
    else:
        done = mpirun(3, ["-m", "psnode", *words])
        assert done.code == 0, done
    files = sorted((train_dir / "checkpoints").glob("step-*/**/*.safetensors"))
    found: dict[str, Any] = {str(path.relative_to(train_dir)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    return {**found, "model": json.loads((train_dir / "summary.json").read_bytes())["model_hash"]}


def test_every_checkpoint_is_that_of_a_run_that_waits_whether_unbroken_or_resumed(mpirun: Any, tmp_path: Path) -> None:
    task = tmp_path / "task.py"
    task.write_text(TASK)
    waiting = trained(None, task, tmp_path / "waiting", "--max-steps", 8, "--no-overlap")
    assert len(waiting) > 8  # checkpoints of steps 3, 6 and 8
    trained(mpirun, task, tmp_path / "early", "--max-steps", 6)
    assert trained(mpirun, task, tmp_path / "early", "--max-steps", 8, "--resume") == waiting
