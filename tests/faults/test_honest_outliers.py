"""Honest gradients that are far larger than earlier ones: accepted unchanged or, if a bound was requested, delayed."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from psnode.config import Config
from psnode.jobs.job import run
from psnode.records import checkpoint
from psnode.task import Task

EXAMPLES, FEATURES, RATE, STEPS = 4096, 20, 0.5, 48


class Rows:
    """Numbered examples, of which one in 256 is positive."""

    def __init__(self) -> None:
        rng = np.random.default_rng(4)
        self.x = rng.standard_normal((EXAMPLES, FEATURES)).astype(np.float32)
        self.y = (np.arange(EXAMPLES) % 256 == 17).astype(np.float32)

    def __len__(self) -> int:
        return EXAMPLES

    def batch(self, indices: np.ndarray, rng: np.random.Generator | None) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.from_numpy(self.x[indices]), torch.from_numpy(self.y[indices])


class Rare(Task):
    """A logistic model with a scale parameter. At the beginning it is almost certain of the frequent class; the task records
    its batches.
    """

    def __init__(self, bias: float) -> None:
        super().__init__()
        self.bias, self.rows, self.seen = bias, Rows(), list[tuple[torch.Tensor, torch.Tensor]]()

    def model(self) -> torch.nn.Module:
        begin = {"weight": torch.zeros(FEATURES), "bias": torch.tensor([self.bias]), "scale": torch.tensor(1.0)}
        return torch.nn.ParameterDict({name: torch.nn.Parameter(value) for name, value in begin.items()})

    def train_data(self) -> Rows:
        return self.rows

    def eval_data(self) -> Rows:
        return self.rows

    def loss(self, model: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, None]:
        self.seen.append(batch)
        return rare_loss(dict(model.named_parameters()), batch), None

    def size(self, batch: tuple[torch.Tensor, torch.Tensor]) -> int:
        return len(batch[1])


def rare_loss(weights: dict[str, torch.Tensor], batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    logits = weights["scale"] * (batch[0] @ weights["weight"]) + weights["bias"]
    return torch.nn.functional.binary_cross_entropy_with_logits(logits, batch[1])


def config(folder: Path, workers: int, **changed: Any) -> Config:
    settings = {
        "scheme": "dense", "momentum": 0.0, "lr": RATE, "lr_schedule": "constant", "batch_size": 32, "local": workers,
        "threads": 1, "tensorboard": False, "eval_freq": 0, "log_interval": 1000, "max_steps": STEPS, "group_by": "layer",
    }  # fmt: skip
    return Config(train_dir=folder, **{**settings, **changed})


def told(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "events.jsonl").read_text().splitlines() if (folder / "events.jsonl").exists() else []
    return [event for event in map(json.loads, lines) if event["event"] in ("rejected", "lost", "scaled", "not applied")]


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    newest = checkpoint.latest(folder)
    assert newest is not None
    return checkpoint.Checkpoint.open(newest).tensors(checkpoint.MODEL)


@pytest.mark.parametrize("bias", [-7.0, -80.0])
def test_one_dense_worker_is_plain_torch_however_rare_the_positives_are(tmp_path: Path, bias: float) -> None:
    """Compare a run with plain torch. With a bias of -80, the gradient is 1e-35 for a batch without a positive example, and
    .03 for a batch that has one.
    """
    task = Rare(bias)
    assert run(config(tmp_path, 1), task) == 0
    assert told(tmp_path) == []
    begin = Rare(bias).model()
    optimizer = torch.optim.SGD(begin.parameters(), lr=RATE)
    norms = []
    for batch in task.seen[-STEPS:]:
        optimizer.zero_grad()
        rare_loss(dict(begin.named_parameters()), batch).backward()
        norms.append(float(begin["bias"].grad))
        optimizer.step()
    assert max(map(abs, norms)) > (1e20 if bias < -70 else 10) * float(np.median(np.abs(norms)))
    for name, value in weights_of(tmp_path).items():
        torch.testing.assert_close(value, begin[name].detach(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("bias", [-7.0, -80.0])
def test_of_several_workers_nothing_is_refused_either(tmp_path: Path, workers: int, bias: float) -> None:
    assert run(config(tmp_path, workers), Rare(bias)) == 0
    assert told(tmp_path) == []
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert {record["contributing"] for record in records} == {workers}


def test_with_a_bound_what_most_workers_have_met_once_is_usual(tmp_path: Path) -> None:
    """Check that large gradients are refused only until most workers have had one, and that no worker is lost. A worker has
    a positive example in about every eighth batch.
    """
    assert run(config(tmp_path, 4, norm_cap=10.0), Rare(-7.0)) == 0
    found = told(tmp_path)
    assert {event["event"] for event in found} <= {"rejected"}
    assert len(found) <= 8
    assert all(event["step"] < STEPS / 2 for event in found)


class Outlier(Task):
    """loss = <weights, G> with G all ones; in its fifth step worker 2 gets 100 times this gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.met = 0

    def model(self) -> torch.nn.Module:
        return torch.nn.ParameterDict({"matrix": torch.nn.Parameter(torch.zeros(40, 40))})

    def train_data(self) -> Rows:
        return Rows()

    def eval_data(self) -> Rows:
        return Rows()

    def loss(self, model: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, None]:
        factor = 1.0
        if threading.current_thread().name == "worker-2":
            self.met += 1
            factor = 100.0 if self.met == 5 else 1.0
        return factor * model["matrix"].sum(), None

    def size(self, batch: tuple[torch.Tensor, torch.Tensor]) -> int:
        return len(batch[1])


def test_what_a_bound_takes_returns_to_the_memory_and_the_worker_stays(tmp_path: Path) -> None:
    """Check that applied and remembered gradients sum to those of 3 workers over STEPS steps, plus 99 from the outlier."""
    changed = {"scheme": "topk:ratio=0.25", "feedback": "ef", "norm_cap": 10.0, "momentum": 0.0, "min_compress_bytes": 0}
    task = Outlier()
    assert run(config(tmp_path, 3, downlink="dense", **changed), task) == 0
    assert {(event["event"], event["rank"]) for event in told(tmp_path)} == {("scaled", 2)}
    assert task.met >= STEPS
    applied = -3 * float(weights_of(tmp_path)["matrix"].double().sum()) / RATE
    newest = checkpoint.latest(tmp_path)
    assert newest is not None
    owed = 0.0
    for rank in (1, 2, 3):
        tensors = checkpoint.Checkpoint.open(newest).tensors(checkpoint.worker_file(rank))
        owed += sum(float(value.double().sum()) for name, value in tensors.items() if name.startswith("feedback/residual/"))
    assert applied + owed == pytest.approx(1600 * (3 * STEPS + 99), rel=1e-3)
    assert applied > 1600 * 2 * STEPS
