"""Parameter groups in real MPI jobs: with overlap, and in a session with its own schedule."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from psnode.config import Config
from psnode.jobs.job import run
from tests.mpi.session_program import Points, network

pytestmark = pytest.mark.serial

PROGRAM = Path(__file__).with_name("session_program.py")


def test_a_job_that_overlaps_ends_with_the_weights_of_one_that_does_not(mpirun: Any, tmp_path: Path) -> None:
    """Compare the weights of a job with overlap with those under `--local`, which waits for all weights. In both, biases do
    not decay under AdamW.
    """
    asked = {"network": "FC", "batch_size": 8, "threads": 1, "lr": 0.02, "optimizer": "adamw", "weight_decay": 0.5, "beta2": 0.9}
    asked |= {"scheme": "topk:ratio=0.1", "max_steps": 5, "group_by": "layer", "eval_freq": 0}
    flags = [part for name, value in asked.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    job = mpirun(
        3, ["-m", "psnode", "train", *flags, "--no-decay", "bias", "--no-tensorboard", "--train-dir", tmp_path / "overlap"]
    )
    assert job.code == 0, job
    run(Config(**asked, no_decay=("bias",), local=2, tensorboard=False, train_dir=tmp_path / "local"))
    ends = [json.loads((tmp_path / name / "summary.json").read_bytes()) for name in ("overlap", "local")]
    assert ends[0]["model_hash"] == ends[1]["model_hash"]
    groups = json.loads((tmp_path / "overlap" / "config.json").read_bytes())["parameter_groups"]
    assert groups[1]["weight_decay"] == 0.0
    assert all(name.endswith("bias") for name in groups[1]["params"])


def test_a_session_takes_groups_and_a_schedule_of_its_own_as_torch_does(mpirun: Any, tmp_path: Path) -> None:
    groups = [{"params": ["0.weight", "3.weight"], "lr": 0.05}, {"params": ["0.bias", "3.bias"], "weight_decay": 0.0}]
    settings = {"scheme": "dense", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.1, "max_steps": 6, "parameter_groups": groups}
    job = mpirun(3, [PROGRAM, tmp_path, json.dumps({"settings": settings, "halve": 2})])
    assert job.code == 0, job
    drawn = [json.loads((tmp_path / f"rank-{rank}.json").read_bytes())["drawn"] for rank in (1, 2)]
    model, data = network(), Points()
    named = dict(model.named_parameters())
    theirs = [{**group, "params": [named[name] for name in group["params"]]} for group in groups]
    optimizer = torch.optim.SGD(theirs, 0.1, momentum=0.9, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    for one, two in zip(*drawn, strict=True):
        optimizer.zero_grad()
        functional.cross_entropy(model(data.x[one + two]), data.y[one + two]).backward()
        optimizer.step()
        schedule.step()
    newest = tmp_path / "run" / "checkpoints" / "step-00000006" / "model.safetensors"
    from safetensors.torch import load_file

    for name, weight in load_file(newest).items():
        torch.testing.assert_close(weight, named[name].detach(), rtol=1e-4, atol=1e-5)
