"""Runs for the tests of reports: a run made by psnode, and runs whose files are written directly."""

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
    """Return a line of metrics.jsonl: 2 seconds, 300 bytes up, 100 bytes down, and loss 1 / step."""
    parts = ("forward_backward", "encode", "wait", "decode", "update", "downlink")
    seconds = {"step": 2.0, **dict.fromkeys(parts, 0.5)}
    made = {
        "step": step, "epoch": step / 10, "loss": 1 / step, "lr": 0.1, "workers": 2, "contributing": 2, "uplink_bytes": 300,
        "downlink_bytes": 100, "dropped": 0, "samples_per_second": 32.0, "seconds": seconds, "relative_error": None,
        "metrics": {},
    }  # fmt: skip
    return made | fields


def lines(path: Path, records: Sequence[Any]) -> None:
    """Write a file with one JSON object per line."""
    path.write_text("".join(json.dumps(each) + "\n" for each in records))


def write_run(path: Path, steps: Sequence[dict[str, Any]], **changes: Any) -> Path:
    """Write a run without checkpoints, with `changes` to its config.json, and return its path."""
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(CONFIG | changes))
    lines(path / "metrics.jsonl", steps)
    return path


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of a run of two workers with a timeline and evaluated checkpoints."""
    path = tmp_path_factory.mktemp("runs") / "trained"
    train = ["train", "--local", "2", "--network", "FC", "--scheme", "dense", "--batch-size", "8", "--max-steps", "6"]
    train += ["--eval-freq", "2", "--timeline", "--quiet", "--no-tensorboard", "--train-dir", str(path)]
    assert main(train) == 0
    assert main(["evaluate", "--once", "--train-dir", str(path)]) == 0
    return path
