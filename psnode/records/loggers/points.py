"""Tags and values of a step's record, as loggers receive them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from psnode.records.metrics import StepRecord


def points(record: StepRecord) -> Iterator[tuple[str, float]]:
    """Yield tag and value of each figure that loggers receive from a record. Figures that are None are left out.

    Tags begin with `train/` for figures of training, `comm/` for figures of communication, and `time/` for times in seconds.
    """
    if record.loss is not None:
        yield "train/loss", record.loss
    yield "train/lr", record.lr
    yield "train/samples_per_second", record.samples_per_second
    for name, value in record.metrics.items():
        yield f"train/{name}", value
    if record.gradient_norm is not None:
        yield "train/gradient_norm", record.gradient_norm
    yield "comm/bytes_up", record.uplink_bytes
    yield "comm/bytes_down", record.downlink_bytes
    yield "comm/control_bytes_up", record.uplink_control_bytes
    yield "comm/control_bytes_down", record.downlink_control_bytes
    yield "comm/dropped", record.dropped
    if record.relative_error is not None:
        yield "comm/relative_error", record.relative_error
    for name, value in asdict(record.seconds).items():
        yield f"time/{name}", value
