"""Runs for the tests of reports: one that psnode has made, and one that is written out by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from psnode.cli import main

CONFIG: dict[str, Any] = {
    "psnode": "0.1.0",
    "workers": 2,
    "config": {"scheme": "qsgd", "lr": 0.1, "network": "FC"},
    "scheme": {
        "name": "qsgd", "codec": "qsgd:levels=15,bucket=512,norm=l2", "feedback": "none", "aggregator": "mean",
        "downlink": "dense", "momentum": 0.9, "gathers_decay": True, "ratio_warmup": [], "ratio_epochs": 1.0,
    },
    "plan": {"tensors": [["weight", [10, 10]]], "groups": [[["identity", 0, [100]]]]},
    "versions": {"python": "3.11.7"},
}  # fmt: skip


def record(step: int, **fields: Any) -> dict[str, Any]:
    """A line of metrics.jsonl: 2 seconds, 300 bytes up and 100 down, a loss of 1 / step."""
    parts = ("forward_backward", "encode", "wait", "decode", "update", "downlink")
    seconds = {"step": 2.0, **dict.fromkeys(parts, 0.5)}
    made = {
        "step": step, "epoch": step / 10, "loss": 1 / step, "lr": 0.1, "workers": 2, "contributing": 2, "uplink_bytes": 300,
        "downlink_bytes": 100, "dropped": 0, "samples_per_second": 32.0, "seconds": seconds, "relative_error": None,
        "metrics": {},
    }  # fmt: skip
    return made | fields


def lines(path: Path, records: Sequence[Any]) -> None:
    """Write a file of a JSON object a line."""
    path.write_text("".join(json.dumps(each) + "\n" for each in records))


def write_run(path: Path, steps: Sequence[dict[str, Any]], **changes: Any) -> Path:
    """A run without checkpoints, with `changes` to its config.json."""
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(CONFIG | changes))
    lines(path / "metrics.jsonl", steps)
    return path


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two workers with a timeline, whose checkpoints are evaluated."""
    path = tmp_path_factory.mktemp("runs") / "trained"
    train = ["train", "--local", "2", "--network", "FC", "--scheme", "dense", "--batch-size", "8", "--max-steps", "6"]
    train += ["--eval-freq", "2", "--timeline", "--quiet", "--no-tensorboard", "--train-dir", str(path)]
    assert main(train) == 0
    assert main(["evaluate", "--once", "--train-dir", str(path)]) == 0
    return path
