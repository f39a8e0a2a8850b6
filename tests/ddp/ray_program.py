"""Trainings by Ray on two workers, in one cluster: python ray_program.py FOLDER.

Each training writes the weights and the hook's state of rank R to FOLDER/NAME-R.pt. `plain` uses DDP's own all-reduce, `identity`
the lossless hook, `whole` topk. `disturbed` is `whole` with workers that fail after the second epoch, so that Ray starts new
workers from the checkpoint.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TRAIN_ENABLE_STATE_TRACKING": "0"}

import ray
import ray.train
import torch

from examples import ray_train

WORKERS, FAILING = 2, 2
CODED = {"codec": "topk:ratio=0.05", "epochs": 4}
STEADY = {"plain": {"codec": "", "epochs": 2}, "identity": {"codec": "identity", "epochs": 2}, "whole": CODED}
Reports = list[tuple[int, int, float]]


def watched(failed: Path | None) -> Reports:
    """Record the example's reports from now on. If the file `failed` is given and does not exist, create it after the second
    report and raise an error.
    """
    report, found = ray.train.report, Reports()

    def noted(metrics: dict[str, Any], checkpoint: Any = None) -> None:
        report(metrics, checkpoint=checkpoint)
        found.append((metrics["epoch"], metrics["sent"], metrics["accuracy"]))
        if failed is not None and metrics["epoch"] == FAILING and not failed.exists():
            failed.touch()
            raise RuntimeError("a worker fails")

    ray.train.report = noted
    return found


def train(folder: Path, name: str, settings: dict[str, Any], reports: Reports) -> None:
    """Train as the example does, and write the results."""
    made, states = ray_train.psnode.ddp.comm_hook, []

    def kept(*arguments: Any, **named: Any) -> Any:
        pair = made(*arguments, **named)
        states.append(pair[0])
        return pair

    reports.clear()
    ray_train.psnode.ddp.comm_hook = kept
    network = ray_train.train(settings)
    ray_train.psnode.ddp.comm_hook = made
    saved = {"weights": network.state_dict(), "state": [each.state_dict() for each in states], "reports": list(reports)}
    torch.save(saved, folder / f"{name}-{ray.train.get_context().get_world_rank()}.pt")


def steady(settings: dict[str, Any]) -> None:
    """Run three trainings, each from the beginning."""
    ray.train.get_checkpoint = lambda: None
    reports = watched(None)
    for name, each in STEADY.items():
        train(Path(settings["folder"]), name, each, reports)


def disturbed(settings: dict[str, Any]) -> None:
    """Run a training that fails once on every rank."""
    folder = Path(settings["folder"])
    reports = watched(folder / f"failed-{ray.train.get_context().get_world_rank()}")
    train(folder, "disturbed", CODED, reports)


def main(folder: Path) -> None:
    """Run all trainings, in two Ray runs."""
    root = str(Path(__file__).resolve().parents[2])
    environment = {"env_vars": {"PYTHONPATH": root, "OMP_NUM_THREADS": "1"}}
    ray.init(num_cpus=WORKERS, include_dashboard=False, object_store_memory=80 << 20, runtime_env=environment)
    try:
        for loop, failures in ((steady, 0), (disturbed, 1)):
            began = time.monotonic()
            ray_train.trainer(loop, folder / loop.__name__, WORKERS, {"folder": str(folder)}, failures).fit()
            print(f"{loop.__name__}: {time.monotonic() - began:.0f} s", flush=True)
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
