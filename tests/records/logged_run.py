"""A run with every logger, resumed and evaluated in one process. Prints the findings of the loggers' own readers as JSON.

logged_run.py DIRECTORY
"""

from __future__ import annotations

import json
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from psnode.cli import main

LOGGERS = "wandb,mlflow,trackio"


def train(run: Path, *more: str) -> None:
    common = ["--local", "1", "--threads", "1", "--quiet", "--eval-freq", "2", "--train-dir", str(run), "--no-tensorboard"]
    assert main(["train", *common, *more]) == 0


def in_mlflow(run: Path) -> dict[str, Any]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{run / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("psnode")
    assert experiment is not None
    [found] = client.search_runs([experiment.experiment_id])
    history = {
        name: [(m.step, m.value) for m in client.get_metric_history(found.info.run_id, name)] for name in found.data.metrics
    }
    return {"settings": found.data.params, "tags": found.data.tags, "figures": history, "end": found.info.status}


def in_trackio(run: Path) -> dict[str, Any]:
    from trackio.sqlite_storage import SQLiteStorage

    [record] = SQLiteStorage.get_run_records("psnode")
    figures: dict[str, list[tuple[int, Any]]] = {}
    for row in SQLiteStorage.get_logs("psnode", record["name"]):
        for name, value in row.items():
            figures.setdefault(name, []).append((row["step"], value))
    events = [alert["text"] for alert in SQLiteStorage.get_alerts("psnode")]
    return {"settings": SQLiteStorage.get_run_config("psnode", record["name"]), "figures": figures, "events": events}


def in_wandb(run: Path) -> list[dict[str, Any]]:
    return [one_offline_run(path) for path in sorted((run / "wandb").glob("offline-run-*/*.wandb"))]


def one_offline_run(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"figures": {}, "summary": {}, "events": []}
    for record in offline_records(path):
        if record.HasField("run"):
            found |= {"id": record.run.run_id, "group": record.run.run_group}
            found["settings"] = {item.key: json.loads(item.value_json) for item in record.run.config.update}
        if record.HasField("exit"):
            found["end"] = record.exit.exit_code
        if record.HasField("summary"):
            found["summary"] |= {item.key: json.loads(item.value_json) for item in record.summary.update if item.key}
        if record.HasField("history"):
            row = {
                item.nested_key[0] if item.nested_key else item.key: json.loads(item.value_json) for item in record.history.item
            }
            found["events"] += [row["event"]] if "event" in row else []
            for name, value in row.items():
                found["figures"].setdefault(name, []).append((row["step"], value))
    return found


def offline_records(path: Path) -> Iterator[Any]:
    """Yield the messages of a W&B file: seven bytes, then records of a LevelDB log in blocks of 32 KiB."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, place, message = path.read_bytes(), 7, b""
    while place + 7 <= len(content):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, place)
        message += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            record = Record()
            record.ParseFromString(message)
            yield record
            message = b""


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    train(directory, "--scheme", "dense", "--max-steps", "4", "--lr", "0.02", "--log-to", LOGGERS)
    train(directory, "--resume", "--max-steps", "6")
    assert main(["evaluate", "--once", "--train-dir", str(directory)]) == 0
    found = {"mlflow": in_mlflow(directory), "trackio": in_trackio(directory), "wandb": in_wandb(directory)}
    Path(os.environ["FOUND"]).write_text(json.dumps(found))
