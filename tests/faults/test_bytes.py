"""Bytes of a run's records: those of all frames, counted where they cross the transport."""

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
UP = (Kind.GRADIENT, Kind.REPORT)
DOWN = (Kind.WEIGHTS, Kind.DELTA, Kind.VERSION_COMPLETE)


class Counting(Wrapped):
    """An end that notes the sizes of the frames it sends, by kind and step, and the reports among them."""

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
    """The ends of a whole job over the loopback."""
    settings = {
        "batch_size": 8, "max_steps": 8, "eval_freq": 0, "lr": 0.02, "threads": 1, "tensorboard": False, "group_by": "layer",
        "local": WORKERS, "train_dir": train_dir, "scheme": "qsgd",
    }  # fmt: skip
    config = Config(**{**settings, **changed})
    ends = [Counting(end) for end in loopback_group(WORKERS + 1)]
    assert train(ends, config) == 0
    return ends


@pytest.mark.parametrize("changed", [{}, {"downlink": "dense"}, {"scheme": "topk:ratio=0.01+fp16", "aggregate_order": "arrival"}])
def test_records_hold_the_bytes_of_all_frames_with_headers(tmp_path: Path, changed: dict[str, Any]) -> None:
    ends = trained(tmp_path, **changed)
    records = list(read_records(tmp_path / "metrics.jsonl"))
    assert [record["step"] for record in records] == list(range(1, 9))
    for record in records:
        step = record["step"]
        assert record["uplink_bytes"] == sum(end.bytes[kind, step] for end in ends[1:] for kind in UP), step
    # word of a version is sent after its record is due, and counts in the next one if that was written already: the last in none
    sent = sum(nbytes for (kind, step), nbytes in ends[0].bytes.items() if kind in DOWN and (kind, step) != (Kind.WEIGHTS, 0))
    last = ends[0].bytes[Kind.VERSION_COMPLETE, 8]
    assert sum(record["downlink_bytes"] for record in records) in (sent, sent - last)


def test_a_report_books_the_gradients_of_its_step(tmp_path: Path) -> None:
    for end in trained(tmp_path)[1:]:
        assert sorted(end.reports) == list(range(1, 9))
        for step, report in end.reports.items():
            assert (report["up"], report["down"]) == (end.bytes[Kind.GRADIENT, step], 0)
            assert report["up"] > 10_000
