"""Counts of epochs, examples and gradients if versions contain any number of gradients: they follow from the history, also
across stops.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import psnode
from psnode.config import Config
from psnode.jobs.job import run
from psnode.protocol.wire import HEADER_BYTES, MAGIC, Kind
from psnode.records import checkpoint
from psnode.records.checkpoint import Checkpoint
from psnode.records.history import violations
from psnode.records.metrics import read_records
from psnode.tasks.classification import Classification
from psnode.transport.loopback import LoopbackTransport

WORKERS, BATCH, EXAMPLES = 4, 16, 1437
AN_EPOCH = EXAMPLES // BATCH  # gradients
ASP, SSP = {"consistency": "asp"}, {"consistency": "ssp", "staleness": 2}
RULES = [ASP, {"consistency": "asp", "num_aggregate": 2}, SSP]
KOFN = {"consistency": "kofn", "num_aggregate": 2}


def config(train_dir: Path, **changed: Any) -> Config:
    settings = {"scheme": "dense", "batch_size": BATCH, "max_steps": 60, "eval_freq": 0, "local": WORKERS, "lr": 0.02, "seed": 3}
    settings |= {"threads": 1, "tensorboard": False, "record_history": True, "hash_every": 1, "deadline": 60}
    return Config(train_dir=train_dir, **{**settings, **changed})


def applied(train_dir: Path) -> list[int]:
    """Return the number of gradients applied up to each version, from version 0 on. A gradient counts once any of its groups
    is applied.
    """
    found, counts = set[tuple[int, int]](), [0]
    lines = [line for line in read_records(train_dir / "history.jsonl") if "groups" in line]
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))
    for line in lines:
        found |= {(rank, step) for group in line["groups"] for rank, step, _ in group}
        counts.append(len(found))
    return counts


def newest(train_dir: Path) -> Checkpoint:
    path = checkpoint.latest(train_dir)
    assert path is not None
    return Checkpoint.open(path)


def check_counted(train_dir: Path) -> None:
    """Check that all records' epochs and learning rates follow from the applied gradients, also after a resume."""
    counts = applied(train_dir)
    for record in read_records(train_dir / "metrics.jsonl"):
        step = record["step"]
        assert record["epoch"] == pytest.approx(counts[step] / AN_EPOCH), step
        assert record["lr"] == pytest.approx(0.02 * 0.5 ** (counts[step - 1] // AN_EPOCH)), step


@pytest.mark.sweep
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_an_epoch_is_over_when_its_examples_are_applied(tmp_path: Path, rule: dict[str, Any]) -> None:
    settings: dict[str, Any] = {**rule, "lr_schedule": "shrink", "lr_shrinkage": 0.5}
    assert run(config(tmp_path, **settings)) == 0
    assert run(config(tmp_path, **settings, max_steps=100, resume=True)) == 0
    assert violations(tmp_path, None) == []
    check_counted(tmp_path)


@pytest.mark.sweep
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_run_ends_after_the_epochs_that_it_was_asked_for(tmp_path: Path, rule: dict[str, Any]) -> None:
    assert run(config(tmp_path, **rule, max_steps=None, epochs=1)) == 0
    counts = applied(tmp_path)
    assert counts[-2] < AN_EPOCH <= counts[-1]
    summary = json.loads((tmp_path / "summary.json").read_bytes())
    assert (summary["stop_reason"], summary["steps"]) == ("completed", len(counts) - 1)


@pytest.mark.parametrize("rule", [{}, ASP], ids=str)
def test_bytes_that_a_run_sent_down_are_those_of_its_frames(
    tmp_path: Path, rule: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compare the recorded bytes, of weights and of everything else, with a count where the master passes frames to the
    network.
    """
    sent, lock, send = Counter[Kind](), threading.Lock(), LoopbackTransport.send

    def counted(end: LoopbackTransport, rank: int, tag: int, buffers: Sequence[Any]) -> Any:
        if end.rank == 0:
            frame = b"".join(bytes(buffer) for buffer in buffers)
            if frame[:4] == MAGIC:  # the greeting is not a frame
                with lock:
                    sent[Kind(frame[5])] += len(frame)
        return send(end, rank, tag, buffers)

    monkeypatch.setattr(LoopbackTransport, "send", counted)
    assert run(config(tmp_path, **rule, max_steps=9, local=2, momentum=0.0, lr=0.001)) == 0
    weights = sent[Kind.WEIGHTS] + sent[Kind.DELTA]
    told = json.loads((tmp_path / "summary.json").read_bytes())
    assert told["downlink_bytes"] == weights
    # the messages at the end of the last version and of the job are in no record
    assert 0 <= sent.total() - weights - told["downlink_control_bytes"] <= 3 * 2 * HEADER_BYTES + sent[Kind.PING]
    assert (sent[Kind.EPOCH] > 0) == bool(rule)


class Seen(Classification):
    """A task on digits that records, in order, the examples on which each model has computed."""

    def __init__(self) -> None:
        super().__init__("FC", "digits", seed=3)
        self.batches: dict[int, list[tuple[int, ...]]] = {}

    def train_data(self) -> Any:
        inner = super().train_data()

        class Told:
            def __len__(self) -> int:
                return len(inner)

            def batch(self, indices: Any, rng: Any) -> Any:
                return (*inner.batch(indices, rng), torch.from_numpy(np.array(indices)))

        return Told()

    def loss(self, model: Any, batch: Any) -> Any:
        images, labels, indices = batch
        self.batches.setdefault(id(model), []).append(tuple(indices.tolist()))
        return super().loss(model, (images, labels))

    def metrics(self, outputs: Any, batch: Any) -> dict[str, float]:
        return super().metrics(outputs, batch[:2])


def steps_of(batches: list[tuple[int, ...]]) -> tuple[int, list[int]]:
    """Return the worker, counted from 0, that has these examples as its share, and its steps counted from 1; a repeated step
    counts once.
    """
    places = {}
    for epoch in range(3):
        order = np.random.Generator(
            np.random.PCG64(np.random.SeedSequence((3, int.from_bytes(b"shuf", "big"), epoch)))
        ).permutation(EXAMPLES)
        an_epoch = EXAMPLES // (WORKERS * BATCH)
        for within in range(an_epoch):
            for worker in range(WORKERS):
                start = (within * WORKERS + worker) * BATCH
                places[tuple(order[start : start + BATCH].tolist())] = worker, epoch * an_epoch + within + 1
    found = [places[batch] for batch in batches]
    [worker] = {worker for worker, _ in found}
    steps = [step for _, step in found]
    return worker, [step for i, step in enumerate(steps) if not i or step != steps[i - 1]]


@pytest.mark.sweep
@pytest.mark.parametrize("rule", [*RULES, KOFN], ids=str)
def test_no_example_and_no_gradient_is_lost_where_a_run_is_stopped(tmp_path: Path, rule: dict[str, Any]) -> None:
    taken: dict[int, list[int]] = {worker: [] for worker in range(WORKERS)}
    for last in (12, 13, 14, 40):
        task = Seen()
        slow = {"lr": 0.001, "momentum": 0.0}  # a high rate may make the last checkpoint unsound, which is then not the newest
        assert psnode.run(task, config(tmp_path, **rule, **slow, network="FC", max_steps=last, resume=last > 12)) == 0
        for worker, steps in map(steps_of, task.batches.values()):
            if taken[worker] and steps[0] == 1:  # at a start the model is inspected with the first batch
                steps = steps[1:]
            again = bool(taken[worker] and steps) and steps[0] == taken[worker][-1]  # the step was begun, but not taken
            taken[worker] += steps[again:]
        if rule is not KOFN:
            check_every_gradient(tmp_path)
    assert all(steps == list(range(1, len(steps) + 1)) for steps in taken.values()), taken
    assert violations(tmp_path, rule.get("staleness", 0 if rule is KOFN else None)) == []
    if rule is not KOFN:
        assert sum(record["dropped"] for record in read_records(tmp_path / "metrics.jsonl")) == 0


def check_every_gradient(train_dir: Path) -> None:
    """Check that each group of every gradient computed before a stop is in one version, or waits in the checkpoint."""
    found = newest(train_dir)
    places = {rank: int(found.tensors(checkpoint.worker_file(rank))["data/place"][0]) for rank in range(1, WORKERS + 1)}
    there = [
        (rank, step, group)
        for line in read_records(train_dir / "history.jsonl")
        if "groups" in line
        for group, entries in enumerate(line["groups"])
        for rank, step, _ in entries
    ]
    groups = 1 + max(group for _, _, group in there)
    if found.has("state/waiting.safetensors"):
        for name in found.tensors("state/waiting.safetensors"):
            rank, step, _, group, _ = map(int, name.split("/"))
            there.append((rank, step, group))
    assert len(set(there)) == len(there)
    for rank, place in places.items():
        for group in range(groups):
            assert sum(entry[0] == rank and entry[2] == group for entry in there) == place, (rank, group)


def test_a_run_that_was_begun_without_the_count_goes_on_without(tmp_path: Path) -> None:
    """Check a resumed run whose checkpoint has no count of gradients: each of its versions counts as one gradient, as before
    the count existed.
    """
    run(config(tmp_path, **ASP, max_steps=10))
    manifest = newest(tmp_path).path / checkpoint.MANIFEST
    facts = json.loads(manifest.read_text())
    assert facts.pop("applied")["gradients"] == applied(tmp_path)[-1]
    manifest.write_text(json.dumps(facts))
    for last in (15, 20):
        assert run(config(tmp_path, **ASP, max_steps=last, resume=True)) == 0
    records = [record for record in read_records(tmp_path / "metrics.jsonl") if record["step"] > 10]
    assert [record["epoch"] for record in records] == [pytest.approx(step / AN_EPOCH) for step in range(11, 21)]
    assert "applied" not in newest(tmp_path).facts
