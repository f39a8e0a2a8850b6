"""The byte counts of a run's records equal those of the frames at the transport, and are the same in every equal run."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from psnode.config import Config
from psnode.protocol import wire
from psnode.protocol.wire import Kind
from psnode.records.metrics import read_records
from psnode.transport.base import Buffer, Pending, Transport
from psnode.transport.loopback import loopback_group
from tests.faults.wrapped import Wrapped, train

WORKERS = 3
WEIGHTS = (Kind.WEIGHTS, Kind.DELTA)
CODED = (Kind.GRADIENT, *WEIGHTS)
LATE = (Kind.STATE, Kind.END, Kind.PING)  # these may arrive after all records are written, as may the notice of the last version


class Counting(Wrapped):
    """An end of a transport that counts the sizes of its frames by kind and step, and collects its reports."""

    def __init__(self, end: Transport) -> None:
        super().__init__(end)
        self.bytes: Counter[tuple[Kind, int]] = Counter()
        self.reports: dict[int, dict[str, Any]] = {}
        self._lock = threading.Lock()

    def send(self, rank: int, tag: int, buffers: Sequence[Buffer]) -> Pending:
        message = np.frombuffer(b"".join(bytes(buffer) for buffer in buffers), np.uint8)
        if message[:4].tobytes() == wire.MAGIC:
            frame = wire.unpack(message, job=int(message[40:48].view("<u8")[0]))
            with self._lock:
                self.bytes[frame.kind, frame.step] += message.size
                if frame.kind is Kind.REPORT:
                    self.reports[frame.step] = json.loads(bytes(frame.body))
        return super().send(rank, tag, [message])


def trained(train_dir: Path, **changed: Any) -> list[Counting]:
    """Run a whole job over the loopback transport, and return its ends."""
    settings = {
        "batch_size": 8, "max_steps": 8, "eval_freq": 0, "lr": 0.02, "threads": 1, "tensorboard": False, "group_by": "layer",
        "local": WORKERS, "train_dir": train_dir, "scheme": "qsgd",
    }  # fmt: skip
    config = Config(**{**settings, **changed})
    ends = [Counting(end) for end in loopback_group(WORKERS + 1)]
    assert train(ends, config) == 0
    return ends


SCHEMES = [
    {}, {"downlink": "dense"}, {"scheme": "topk:ratio=0.01+fp16", "aggregate_order": "arrival"},
    {"scheme": "dgc", "hash_every": 2, "eval_freq": 3},
]  # fmt: skip


@pytest.mark.parametrize("changed", SCHEMES, ids=str)
def test_records_hold_the_bytes_of_all_frames_of_gradients_and_weights(tmp_path: Path, changed: dict[str, Any]) -> None:
    ends = trained(tmp_path, **changed)
    records = list(read_records(tmp_path / "metrics.jsonl"))
    assert [record["step"] for record in records] == list(range(1, 9))
    for record in records:
        step = record["step"]
        assert record["uplink_bytes"] == sum(end.bytes[Kind.GRADIENT, step] for end in ends[1:]), step
        assert record["downlink_bytes"] == sum(ends[0].bytes[kind, step] for kind in WEIGHTS), step


@pytest.mark.parametrize("changed", SCHEMES, ids=str)
def test_control_messages_are_all_others_that_left_before_the_last_record(tmp_path: Path, changed: dict[str, Any]) -> None:
    ends = trained(tmp_path, **changed)
    records = list(read_records(tmp_path / "metrics.jsonl"))
    summary = json.loads((tmp_path / "summary.json").read_bytes())
    for name, senders in (("uplink_control_bytes", ends[1:]), ("downlink_control_bytes", ends[:1])):
        sent = Counter[bool]()
        for end in senders:
            for (kind, step), nbytes in end.bytes.items():
                if kind not in CODED:
                    sent[kind in LATE or (kind, step) == (Kind.VERSION_COMPLETE, 8)] += nbytes
        assert summary[name] == sum(record[name] for record in records)
        assert 0 < sent[False] <= summary[name] <= sent.total(), name


@pytest.mark.long
@pytest.mark.parametrize("changed", SCHEMES[:2] + SCHEMES[3:], ids=str)
def test_equal_runs_have_equal_records_of_gradients_and_weights(tmp_path: Path, changed: dict[str, Any]) -> None:
    figures = []
    for name in ("one", "other"):
        trained(tmp_path / name, **changed)
        records = list(read_records(tmp_path / name / "metrics.jsonl"))
        summary = json.loads((tmp_path / name / "summary.json").read_bytes())
        figures.append(([(record["uplink_bytes"], record["downlink_bytes"]) for record in records], summary["compression_ratio"]))
    assert figures[0] == figures[1]


def test_a_report_books_the_gradients_of_its_step(tmp_path: Path) -> None:
    for end in trained(tmp_path)[1:]:
        assert sorted(end.reports) == list(range(1, 9))
        for step, report in end.reports.items():
            assert (report["up"], report["down"]) == (end.bytes[Kind.GRADIENT, step], 0)
            assert report["up"] > 10_000
