"""A worker that lies: its frames are rejected, counted and never added; after three in a row the job continues without it."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from psnode.codecs import Payload, get_codec
from psnode.codecs.rng import Key
from psnode.config import Config
from psnode.jobs.job import run
from psnode.protocol import wire
from psnode.protocol.wire import HEADER_BYTES, Kind
from psnode.records import checkpoint, tensorfile
from psnode.records.history import violations
from psnode.transport.base import Buffer, Pending, Transport
from psnode.transport.loopback import loopback_group
from tests.faults import wrapped
from tests.faults.wrapped import Wrapped

Lie = Callable[[np.ndarray], np.ndarray]


def garbage(frame: np.ndarray) -> np.ndarray:
    """Return a frame with random payloads, correct length and correct checksum."""
    opened = wire.unpack(frame, job=int(frame[40:48].view("<u8")[0]))
    body = np.array(opened.body)
    start = 4 * (1 + int(body[:4].view("<u4")[0]))
    body[start:] = np.random.default_rng(5).integers(0, 256, body.size - start, np.uint8)
    job = int(frame[40:48].view("<u8")[0])
    return wire.pack(
        opened.kind, body, sender=opened.sender, job=job, group=opened.group, step=opened.step, version=opened.version
    )


def altered(frame: np.ndarray) -> np.ndarray:
    """Return the frame with one bit of the body flipped."""
    found = frame.copy()
    found[-1] ^= 1
    return found


def truncated(frame: np.ndarray) -> np.ndarray:
    """Return the first half of the frame."""
    return frame[: HEADER_BYTES + (frame.size - HEADER_BYTES) // 2].copy()


def of_another_job(frame: np.ndarray) -> np.ndarray:
    """Return a replay of the frame from an earlier start of the job, sealed with that start's job digest."""
    opened = wire.unpack(frame, job=int(frame[40:48].view("<u8")[0]))
    return wire.pack(opened.kind, opened.body, sender=opened.sender, job=77, group=opened.group, step=opened.step)


def no_message(frame: np.ndarray) -> np.ndarray:
    """Return a frame whose JSON is no report and is nested deeper than a parser can follow, with correct length and checksum."""
    opened = wire.unpack(frame, job=int(frame[40:48].view("<u8")[0]))
    body = b'{"loss":' * 5000
    return wire.pack(opened.kind, body, sender=opened.sender, job=int(frame[40:48].view("<u8")[0]), step=opened.step)


def not_its_to_send(frame: np.ndarray) -> np.ndarray:
    """Return a frame of a kind that only the master sends."""
    job = int(frame[40:48].view("<u8")[0])
    return wire.pack(Kind.VERSION_COMPLETE, sender=int(frame[8:12].view("<u4")[0]), job=job, step=4, version=4)


def with_body(change: Callable[[bytes], bytes]) -> Lie:
    """Return a lie that changes the body of a frame and corrects length and checksum."""

    def lie(frame: np.ndarray) -> np.ndarray:
        job = int(frame[40:48].view("<u8")[0])
        opened = wire.unpack(frame, job=job)
        body = change(bytes(opened.body))
        place = {"group": opened.group, "step": opened.step, "version": opened.version}
        return wire.pack(opened.kind, body, sender=opened.sender, job=job, **place)

    return lie


def reporting(**fields: Any) -> Lie:
    """Return a lie that replaces fields of a report."""
    return with_body(lambda body: json.dumps({**json.loads(body), **fields}).encode())


def too_long(body: bytes) -> bytes:
    """Append a megabyte of zeros to the first payload."""
    count, first = struct.unpack_from("<II", body)
    head = 4 * (1 + count)
    table = struct.pack("<II", count, first + (1 << 20)) + body[8:head]
    return table + body[head : head + first] + bytes(1 << 20) + body[head + first :]


class Lying(Wrapped):
    """A worker's end that replaces its frames of one kind by lies, at most `most` times, from `step` on."""

    def __init__(self, end: Transport, lie: Lie, step: int, kind: Kind = Kind.GRADIENT, most: int = 1 << 30) -> None:
        super().__init__(end)
        self._lie, self._step, self._kind, self._most = lie, step, kind, most

    def send(self, rank: int, tag: int, buffers: Sequence[Buffer]) -> Pending:
        frame = np.frombuffer(b"".join(bytes(buffer) for buffer in buffers), np.uint8)
        framed = frame.size > HEADER_BYTES and frame[:4].tobytes() == wire.MAGIC
        if framed and self._most and frame[5] == self._kind and int(frame[16:24].view("<u8")[0]) >= self._step:
            frame = self._lie(frame)
            self._most -= 1
        return super().send(rank, tag, [frame])


def train(
    config: Config, workers: int, liar: int | Sequence[int], lie: Lie, step: int, kind: Kind = Kind.GRADIENT, most: int = 1 << 30
) -> int:
    """Run a whole job over the loopback transport and return its exit code. Worker `liar`, or each of several, lies from
    `step` on.
    """
    ends: list[Transport] = list(loopback_group(workers + 1))
    for rank in [liar] if isinstance(liar, int) else liar:
        ends[rank] = Lying(ends[rank], lie, step, kind, most)
    return wrapped.train(ends, config)


def settings(train_dir: Path) -> dict[str, Any]:
    return {
        "scheme": "qsgd", "batch_size": 8, "max_steps": 12, "eval_freq": 0, "lr": 0.02, "threads": 1, "tensorboard": False,
        "group_by": "layer", "min_compress_bytes": 0, "deadline": 40.0, "train_dir": train_dir, "local": 3,
    }  # fmt: skip


@pytest.mark.parametrize("lie", [garbage, altered, truncated, of_another_job])
def test_lies_are_rejected_and_the_job_goes_on_without_the_liar(tmp_path: Path, lie: Lie) -> None:
    assert train(Config(**settings(tmp_path / "run")), 3, liar=2, lie=lie, step=4) == 0
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert [(event["event"], event["rank"]) for event in events] == [("rejected", 2)] * 3 + [("lost", 2)]
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == list(range(1, 13))
    assert sum(record["dropped"] for record in records) >= 3
    assert [record["contributing"] for record in records][4:] == [2] * 8


def narrower(body: bytes) -> bytes:
    """Remove a row from every sketch of the frame: valid payloads, but of another geometry."""
    count = struct.unpack_from("<I", body)[0]
    lengths = struct.unpack_from(f"<{count}I", body, 4)
    start, found, rows = 4 * (1 + count), b"", []
    for nbytes in lengths:
        payload = Payload.from_bytes(np.frombuffer(body[start : start + nbytes], np.uint8))
        start += wire.padded(nbytes)
        data = payload.to_bytes()
        if payload.stages == ("countmean",):
            other = get_codec("countmean:rows=2,ratio=0.05")
            data = other.encode(np.zeros(payload.shape, np.float32), Key.derive(1)).to_bytes()
        rows.append(len(data))
        found += data + bytes(wire.padded(len(data)) - len(data))
    return struct.pack(f"<{1 + count}I", count, *rows) + found


def test_the_first_sketch_of_a_round_is_not_the_reference(tmp_path: Path) -> None:
    """Check that only the liar is rejected if it has the lowest rank, so that its sketch comes first; the other ranks use
    the master's geometry.
    """
    config = Config(**{**settings(tmp_path / "run"), "scheme": "countmean", "group_by": "model", "downlink": "dense"})
    assert train(config, 3, liar=1, lie=with_body(narrower), step=4, most=1) == 0
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert [(event["event"], event["rank"]) for event in events if event["event"] in ("rejected", "lost")] == [("rejected", 1)]


def test_nothing_of_a_lie_is_added(tmp_path: Path) -> None:
    """Check that two kinds of lies give the same weights: a rank that always lies has the effect of an absent rank."""
    hashes = []
    for name, lie in (("garbage", garbage), ("altered", altered)):
        assert train(Config(**settings(tmp_path / name)), 3, liar=3, lie=lie, step=1) == 0
        hashes.append(json.loads((tmp_path / name / "summary.json").read_bytes())["model_hash"])
    honest = {**settings(tmp_path / "honest")}
    assert run(Config(**honest)) == 0
    hashes.append(json.loads((tmp_path / "honest" / "summary.json").read_bytes())["model_hash"])
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("kind", "lie"),
    [
        (Kind.GRADIENT, altered), (Kind.GRADIENT, garbage), (Kind.GRADIENT, not_its_to_send),
        (Kind.REPORT, altered), (Kind.REPORT, no_message), (Kind.REPORT, not_its_to_send), (Kind.GRADIENT, with_body(too_long)),
        (Kind.REPORT, reporting(metrics={"top1": "three"})), (Kind.REPORT, reporting(loss=10**400)),
    ],
)  # fmt: skip
def test_one_bad_frame_costs_a_worker_no_more_than_a_round(tmp_path: Path, kind: Kind, lie: Lie) -> None:
    config = Config(**settings(tmp_path / "run"), record_history=True)
    assert train(config, 3, liar=2, lie=lie, step=4, kind=kind, most=1) == 0
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert [(event["event"], event["rank"]) for event in events] == [("rejected", 2)]
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == list(range(1, 13))
    assert [record["contributing"] for record in records][5:] == [3] * 7
    assert violations(tmp_path / "run") == []


def extra_buffer(body: bytes) -> bytes:
    """Add a buffer that the model does not have, so that the checkpoint would fit no model."""
    return tensorfile.dump({**tensorfile.parse(body, "state"), "buffer/running_mean": torch.zeros(3)})


@pytest.mark.parametrize("lie", [altered, truncated, of_another_job, with_body(extra_buffer)])
def test_a_checkpoint_is_made_without_a_worker_whose_part_of_it_is_a_lie(tmp_path: Path, lie: Lie) -> None:
    config = Config(**{**settings(tmp_path / "run"), "eval_freq": 5}, record_history=True)
    assert train(config, 3, liar=2, lie=lie, step=5, kind=Kind.STATE) == 0
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert [(event["event"], event["rank"]) for event in events] == [("rejected", 2), ("lost", 2)]
    assert violations(tmp_path / "run") == []
    assert [checkpoint.step_of(path) for path in checkpoint.complete(tmp_path / "run")] == [5, 10, 12]
