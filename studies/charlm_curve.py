"""`python -m studies.charlm_curve`: losses of a transformer in plain PyTorch, and in psnode with one worker, dense and coded.

The model is the transformer of examples/charlm.py. It is trained with AdamW (betas .9 and .95, weight decay .1 except for norms
and biases), clipping by the global norm (1.0), bfloat16 autocast, and a learning rate with a warm-up, a constant part and a
decay. All three runs use the same batches. The table has a row for each run, with the mean loss of every tenth of the run. The
last column is the greatest relative difference of a tenth from plain PyTorch. The exit code is 0 if this difference is at most
.1 % for the dense run and at most 1 % for the coded run, otherwise 1.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.optim import lr_scheduler

import psnode
from psnode.config import Config
from psnode.config.declaration import option
from psnode.records.metrics import METRICS, read_records
from psnode.task import load_task
from psnode.tasks.data.sampler import Sampler
from studies.harness import Column, Found, Result, Study, at, main

EXAMPLE = str(Path(__file__).parents[1] / "examples" / "charlm.py")
BATCH, SEED, LR, CLIP, DECAY, BETA2 = 16, 5, 2e-3, 1.0, 0.1, 0.95
PARTS = 10
WITHIN = {"dense": 1e-3, "coded": 1e-2}


def _task(width: int) -> Any:
    return load_task(EXAMPLE, {"model": "transformer", "width": str(width)})


def by_torch(steps: int, width: int) -> list[float]:
    """Return the loss of each step of a plain PyTorch loop."""
    task = _task(width)
    torch.manual_seed(SEED)
    model, data = task.model(), task.train_data()
    plain = [value for name, value in model.named_parameters() if "norm" in name or "bias" in name]
    rest = [value for value in model.parameters() if all(value is not other for other in plain)]
    groups: list[dict[str, Any]] = [{"params": rest}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, LR, betas=(0.9, BETA2), weight_decay=DECAY, foreach=False)
    schedule = lr_scheduler.LambdaLR(optimizer, lambda step: factor(step, steps))
    sampler, losses = Sampler(len(data), 0, 1, BATCH, 1, SEED), []
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss, _ = task.loss(model, data.batch(sampler.indices(step)[0], None))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        schedule.step()
        losses.append(float(loss.detach()))
    return losses


def factor(step: int, steps: int) -> float:
    """Return the learning rate relative to LR.

    It rises in the first tenth of the run, stays constant, and falls to 0 in the last tenth.
    """
    part = max(1, steps // PARTS)
    return min(1.0, (step + 1) / part, (steps - step) / part)


def by_psnode(steps: int, width: int, scheme: str, downlink: str | None, folder: Path) -> list[float]:
    """Return the loss of each step of a psnode job with one worker."""
    part = max(1, steps // PARTS)
    settings: dict[str, Any] = {
        "scheme": scheme, "downlink": downlink, "optimizer": "adamw", "momentum": 0.9, "beta2": BETA2, "weight_decay": DECAY,
        "no_decay": ("norm", "bias"), "clip_grad_norm": CLIP, "precision": "bf16", "lr": LR, "lr_schedule": "wsd",
        "warmup_steps": part, "lr_decay_steps": part,
    }  # fmt: skip
    same: dict[str, Any] = {"batch_size": BATCH, "seed": SEED, "max_steps": steps, "local": 1, "threads": torch.get_num_threads()}
    code = psnode.run(_task(width), Config(train_dir=folder, tensorboard=False, eval_freq=0, quiet=True, **settings, **same))
    if code:
        sys.exit(code)
    return [record["loss"] for record in read_records(folder / METRICS)]


def parts(losses: Sequence[float]) -> list[float]:
    """Return the mean losses of the tenths of a run."""
    edges = [len(losses) * index // PARTS for index in range(PARTS + 1)]
    return [statistics.fmean(losses[first:last]) for first, last in pairwise(edges)]


@dataclass(frozen=True)
class Options:
    """Options of `python -m studies.charlm_curve`."""

    steps: int = option(400, "Steps of each run.", minimum=PARTS)
    width: int = option(64, "Of the transformer.", minimum=1)
    scheme: str = option("qsgd:levels=127", "Of the coded run.", metavar="SPEC")
    downlink: str = option("qsgd:levels=127", "Of the coded run.", metavar="SPEC")
    output: Path | None = option(None, "Directory in which the runs stay.", metavar="FOLDER")


def measure(options: Options) -> Found:
    """Return a row per run: its name `run`, `losses` (means of tenths), and `worst` (greatest difference from plain PyTorch)."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.output or Path(scratch)
        plain = parts(by_torch(options.steps, options.width))
        curves = {"plain PyTorch": plain}
        for name, scheme, downlink in (("dense", "dense", None), ("coded", options.scheme, options.downlink)):
            curves[name] = parts(by_psnode(options.steps, options.width, scheme, downlink, folder / name))
    worst = {name: max(abs(a / b - 1) for a, b in zip(curve, plain, strict=True)) for name, curve in curves.items()}
    return Found([{"run": name, "losses": curve, "worst": worst[name]} for name, curve in curves.items()])


def _columns(result: Result) -> list[Column]:
    tenths = [Column(str(result["steps"] * (part + 1) // PARTS), at(".4f", "losses", part)) for part in range(PARTS)]
    return [Column("up to step", "{run}", left=True), *tenths, Column("greatest difference", "{worst:.2%}")]


STUDY = Study(
    Options,
    measure,
    _columns,
    head=lambda result: f"Coded: {result['scheme']}, down {result['downlink']}.",
    passed=lambda result: all(row["worst"] <= WITHIN.get(row["run"], 1.0) for row in result["rows"]),
)


if __name__ == "__main__":
    sys.exit(main(STUDY))
