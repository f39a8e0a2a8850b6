"""Unfinished checkpoints, with parts that arrive late or never, or that come from absent workers."""

from __future__ import annotations

import dataclasses
import errno
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from psnode.config import Config
from psnode.errors import PsnodeError, WireError
from psnode.exchange.shard.consistency import Synchronous
from psnode.exchange.shard.shard import Shard
from psnode.exchange.shard.shard_events import StatePart
from psnode.exchange.shard.state import ShardState
from psnode.master.checkpoints.pending import PendingCheckpoints
from psnode.master.events import Events
from psnode.protocol import wire
from psnode.protocol.wire import Frame, Kind
from psnode.records import checkpoint, staging, tensorfile
from psnode.records.directory import claim
from psnode.records.metrics import EVENTS
from psnode.records.retention import UNKNOWN, is_sound
from psnode.records.timeline import Tracer
from tests.exchange.shard.small import small_plan, small_shard


@dataclasses.dataclass
class Bench:
    """Pending checkpoints of a small model with running statistics."""

    pending: PendingCheckpoints
    shard: Shard
    model: nn.Module
    folder: Path

    def part(self, version: int, rank: int, mean: float) -> None:
        content = tensorfile.dump(
            {"buffer/1.running_mean": torch.full((3,), mean), "buffer/1.num_batches_tracked": torch.tensor(rank)}
        )
        self.pending.take(Frame(Kind.STATE, wire.Flag.NONE, rank, 0, version, version, np.frombuffer(content, np.uint8)))

    @property
    def published(self) -> list[int]:
        self.pending.finish()
        return [checkpoint.step_of(path) for path in checkpoint.complete(self.folder)]

    def tensors(self, version: int) -> dict[str, torch.Tensor]:
        self.pending.finish()
        path = self.folder / checkpoint.CHECKPOINTS / checkpoint.step_directory(version)
        return checkpoint.Checkpoint.open(path).tensors(checkpoint.MODEL)


def bench(
    folder: Path,
    *,
    rounds_go_on: bool,
    keep_last: int = 0,
    mask: bool = False,
    tell: Callable[[object], None] = lambda event: None,
) -> Bench:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    if mask:
        model.register_buffer("mask", torch.full((3,), -torch.inf))
    config = Config(scheme="dense", train_dir=folder, keep_last=keep_last)
    shard = small_shard(model, config, Synchronous(3, backups=rounds_go_on))
    with claim(config) as run:
        pass
    events = Events(folder)
    plan, tracer = small_plan(model, config), Tracer(0, enabled=False)
    pending = PendingCheckpoints(run, shard, model, plan, tracer, events, workers=3, rounds_go_on=rounds_go_on, tell=tell)
    return Bench(pending, shard, model, folder)


def test_a_part_of_everybody_who_was_there_makes_a_checkpoint(tmp_path: Path) -> None:
    found = bench(tmp_path, rounds_go_on=False)
    found.pending.begin(5, [1, 2], 0.0)
    found.part(5, 1, 2.0)
    assert (found.published, found.pending.missing) == ([], {2})
    found.part(5, 3, 100.0)  # this rank was absent
    found.part(4, 2, 100.0)  # this version has no checkpoint
    assert found.published == []
    found.part(5, 2, 4.0)
    assert (found.published, len(found.pending)) == ([5], 0)
    assert found.tensors(5)["1.running_mean"].tolist() == [3.0] * 3
    assert found.tensors(5)["1.num_batches_tracked"] == 2


def test_a_part_with_a_buffer_of_another_shape_is_refused_with_both_shapes(tmp_path: Path) -> None:
    found = bench(tmp_path, rounds_go_on=False)
    found.pending.begin(5, [1], 0.0)
    content = np.frombuffer(tensorfile.dump({"buffer/1.running_mean": torch.ones(4)}), np.uint8)
    told = r"holds buffer/1\.running_mean, torch\.float32 of shape \(4,\), which the model has as torch\.float32 of shape \(3,\)"
    with pytest.raises(WireError, match=told):
        found.pending.take(Frame(Kind.STATE, wire.Flag.NONE, 1, 0, 5, 5, content))


def test_one_without_the_memories_of_somebody_who_is_there_takes_no_other_ones_place(tmp_path: Path) -> None:
    found = bench(tmp_path, rounds_go_on=False, keep_last=1)
    for version, late in ((5, False), (10, True), (15, False)):
        found.pending.begin(version, [1, 2], 0.0)
        found.part(version, 1, 0.0)
        if late:
            found.pending.give_up(2)
            assert found.published == [5, 10]
        else:
            found.part(version, 2, 0.0)
            assert found.published == [version]


def test_one_that_nobody_is_left_for_takes_no_other_ones_place(tmp_path: Path) -> None:
    found = bench(tmp_path, rounds_go_on=False, keep_last=1)
    found.pending.begin(20, [1, 2, 3], 0.0)
    for rank in (1, 2, 3):
        found.part(20, rank, 7.0)
    found.pending.begin(27, [], 0.0)
    found.pending.publish()
    assert found.published == [20, 27]
    assert reasons(tmp_path, "old buffers") == [
        (27, "no worker's part of the checkpoint has come: its buffers are those of step 20")
    ]


def test_after_a_death_the_newest_with_the_memory_of_the_dead_is_kept_and_no_more_than_that(tmp_path: Path) -> None:
    found = bench(tmp_path, rounds_go_on=False, keep_last=1)
    for version, ranks in ((5, [1, 2, 3]), (10, [1, 2, 3]), (15, [1, 2]), (20, [1, 2]), (25, [1, 2])):
        found.pending.begin(version, ranks, 0.0)
        for rank in ranks:
            found.part(version, rank, 0.0)
    assert found.published == [10, 25]
    found.pending.begin(30, [1, 2, 3], 0.0)
    for rank in (1, 2, 3):
        found.part(30, rank, 0.0)
    assert found.published == [30]


def test_buffers_that_no_worker_has_sent_are_told_to_be_those_of_the_start(tmp_path: Path) -> None:
    found = bench(tmp_path, rounds_go_on=False)
    found.pending.begin(3, [1], 0.0)
    found.pending.give_up(1)
    assert found.published == [3]
    assert found.tensors(3)["1.running_mean"].tolist() == [0.0] * 3
    [(version, reason)] = reasons(tmp_path, "old buffers")
    assert version == 3
    assert reason.endswith("its buffers are those of step 0")


def test_one_that_holds_what_is_not_finite_takes_no_other_ones_place_and_none_that_it_may_resume_from(tmp_path: Path) -> None:
    found = bench(tmp_path, rounds_go_on=False, keep_last=1)
    for version, mean in ((5, 1.0), (10, float("nan")), (15, float("inf"))):
        found.pending.begin(version, [1], 0.0, UNKNOWN)
        found.part(version, 1, mean)
        found.pending.judge(version, "")  # the losses do not show that a buffer is unsound
    assert {step: is_sound(path) for step, path in zip(found.published, checkpoint.complete(tmp_path), strict=True)} == {
        5: True, 15: False,
    }  # fmt: skip
    assert checkpoint.step_of(checkpoint.latest(tmp_path) or tmp_path) == 5
    told = "its checkpoint pushes no other one out: 1.running_mean is not finite; --resume goes on from step 5"
    assert reasons(tmp_path, "unsound") == [(10, told), (15, told)]
    found.pending.begin(20, [1], 0.0, UNKNOWN)
    found.part(20, 1, 1.0)
    found.pending.judge(20, "")
    assert found.published == [20]


def test_a_verdict_that_comes_before_the_last_part_holds_for_what_is_published_then(tmp_path: Path) -> None:
    found = bench(tmp_path, rounds_go_on=True, keep_last=1)
    for version, reason in ((5, ""), (10, "its loss")):
        found.pending.begin(version, [1], 1e9, UNKNOWN)
        found.pending.judge(version, reason)
        found.part(version, 1, 1.0)
    found.pending.finish()
    assert [is_sound(path) for path in checkpoint.complete(tmp_path)] == [True, False]
    assert checkpoint.step_of(checkpoint.latest(tmp_path) or tmp_path) == 5


def test_a_mask_of_infinities_is_no_harm(tmp_path: Path) -> None:
    found = bench(tmp_path, rounds_go_on=False, mask=True)
    found.pending.begin(5, [], 0.0, UNKNOWN)
    found.pending.publish()
    assert reasons(tmp_path, "unsound") == []


def reasons(folder: Path, name: str) -> list[tuple[int, str]]:
    """Return the versions and reasons of the events with this name."""
    lines = (folder / EVENTS).read_text().splitlines() if (folder / EVENTS).exists() else []
    return [(event["step"], event["reason"]) for event in map(json.loads, lines) if event["event"] == name]


def test_none_is_published_before_an_earlier_one(tmp_path: Path) -> None:
    found = bench(tmp_path, rounds_go_on=True)
    found.pending.begin(5, [1, 2], 1e9)
    found.pending.begin(10, [1], 1e9)
    found.part(10, 1, 0.0)
    found.part(5, 1, 0.0)
    assert found.published == []
    found.pending.give_up(2)
    assert found.published == [5, 10]
    assert checkpoint.step_of(checkpoint.latest(tmp_path) or tmp_path) == 10


def test_weights_are_those_of_the_version_where_rounds_go_on(tmp_path: Path) -> None:
    found = bench(tmp_path, rounds_go_on=True)
    before = found.model.state_dict()["0.weight"].clone()
    found.pending.begin(5, [1], 1e9)
    found.shard._reduction.before_change(0)  # as a lane does
    with torch.no_grad():
        found.model[0].weight += 1  # type: ignore[index, operator]
    found.part(5, 1, 0.0)
    assert torch.equal(found.tensors(5)["0.weight"], before)


def test_statistics_of_workers_who_are_gone_are_kept(tmp_path: Path) -> None:
    found = bench(tmp_path, rounds_go_on=False)
    found.pending.begin(5, [1], 0.0)
    found.part(5, 1, 7.0)
    found.pending.begin(6, [], 0.0)
    found.pending.publish()
    assert found.tensors(6)["1.running_mean"].tolist() == [7.0] * 3


def left_out(folder: Path) -> list[tuple[int, int]]:
    """Return the versions and ranks that events.jsonl reports as left out."""
    lines = (folder / EVENTS).read_text().splitlines() if (folder / EVENTS).exists() else []
    return [(event["step"], event["rank"]) for event in map(json.loads, lines) if event["event"] == "left out"]


@pytest.mark.parametrize(("now", "expected"), [(99.0, []), (101.0, [(5, 2), (5, 3)])])
def test_where_rounds_go_on_a_checkpoint_does_not_wait_for_ever(tmp_path: Path, now: float, expected: object) -> None:
    found = bench(tmp_path, rounds_go_on=True)
    found.pending.begin(5, [1, 2, 3], 100.0)
    found.part(5, 1, 0.0)
    found.pending.hurry(now)
    assert left_out(tmp_path) == expected
    assert found.published == ([5] if expected else [])


def test_no_more_than_four_copies_of_the_weights_wait(tmp_path: Path) -> None:
    found = bench(tmp_path, rounds_go_on=True)
    for version in range(1, 7):
        found.pending.begin(version, [1], 1e9)
    found.pending.hurry(0.0)
    assert left_out(tmp_path) == [(1, 1), (2, 1)]
    assert (found.published, len(found.pending)) == ([1, 2], 4)


def test_a_buffer_that_is_not_the_same_everywhere_is_told_once(tmp_path: Path) -> None:
    found = bench(tmp_path, rounds_go_on=False, mask=True)
    for version in (5, 10):
        found.pending.begin(version, [1, 2], 0.0)
        for rank in (1, 2):
            content = tensorfile.dump({"buffer/mask": torch.full((3,), float(rank))})
            body = np.frombuffer(content, np.uint8)
            found.pending.take(Frame(Kind.STATE, wire.Flag.NONE, rank, 0, version, version, body))
    assert found.published == [5, 10]
    assert [version for version, _ in reasons(tmp_path, "differs")] == [5]


class StateOfTwo:
    """State of a shard on ranks 1 and 2, which hands over the text of its rank."""

    ranks, seconds = frozenset({1, 2}), 30.0

    def __init__(self, shard: Shard) -> None:
        self.shard, self.left = shard, {1, 2}

    def add(self, rank: int, content: bytes) -> bool:
        if content != b"%d" % rank:
            raise PsnodeError(f"not the state of rank {rank}")
        self.left.discard(rank)
        return not self.left

    def state(self) -> ShardState:
        return self.shard.state()

    def norms(self) -> dict[str, torch.Tensor]:
        return {}


@pytest.fixture
def coming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    found = bench(tmp_path, rounds_go_on=False)
    monkeypatch.setattr(found.shard, "hand_over", lambda version: StateOfTwo(found.shard))
    return found


def give(found: Bench, version: int, state_first: bool) -> None:
    """Hand in all parts for which the checkpoint of `version` waits."""
    for state in (state_first, not state_first):
        assert found.published == []
        assert found.pending.in_flight
        for rank in (1, 2):
            if state:
                found.pending.join(StatePart(rank, version, b"%d" % rank))
            else:
                found.part(version, rank, 4.0)


@pytest.mark.parametrize("state_first", [True, False])
def test_state_on_other_ranks_and_the_parts_of_workers_come_in_any_order(coming: Bench, state_first: bool) -> None:
    assert coming.pending.begin(5, [1, 2], 0.0)
    give(coming, 5, state_first)
    assert (coming.published, len(coming.pending)) == ([5], 0)
    assert coming.tensors(5)["1.running_mean"].tolist() == [4.0] * 3
    assert not coming.pending.in_flight


def test_one_without_the_state_of_a_lost_rank_is_given_up(coming: Bench, tmp_path: Path) -> None:
    coming.pending.begin(5, [1, 2], 0.0)
    for rank in (1, 2):
        coming.part(5, rank, 4.0)
    coming.pending.join(StatePart(1, 5, b"1"))
    coming.pending.give_up(2)
    coming.pending.join(StatePart(2, 5, b"2"))  # too late
    assert (coming.published, len(coming.pending)) == ([], 0)
    assert not coming.pending.in_flight
    assert reasons(tmp_path, "not saved") == [
        (5, "its checkpoint cannot be written: rank 2 is lost and has not handed over the state")
    ]
    assert not list((tmp_path / checkpoint.CHECKPOINTS).glob(".step*"))


def test_a_rank_that_does_not_hand_over_is_missing_once_its_time_has_passed(
    coming: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    coming.pending.begin(5, [], 0.0)
    assert (coming.pending.missing, coming.pending.writing) == (set(), True)
    later = time.monotonic() + StateOfTwo.seconds + 1
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert (coming.pending.missing, coming.pending.writing) == ({1, 2}, False)


def test_a_state_that_cannot_be_true_ends_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    found = bench(tmp_path, rounds_go_on=False, tell=told.append)
    monkeypatch.setattr(found.shard, "hand_over", lambda version: StateOfTwo(found.shard))
    found.pending.begin(5, [], 0.0)
    found.pending.join(StatePart(1, 5, b"x"))
    found.pending.finish()
    assert [str(error) for error in told if isinstance(error, PsnodeError)] == ["not the state of rank 1"]


def test_the_last_one_waits_for_the_state(coming: Bench) -> None:
    """Check that the last checkpoint waits for the state: no training goes on that it would delay, and the job needs the
    state for its summary.
    """
    coming.pending.is_last = lambda version: True
    coming.pending.begin(5, [], 0.0)
    coming.pending.publish()
    assert coming.published == [5]


@pytest.mark.parametrize("handed_over", [True, False])
def test_one_without_a_file_is_not_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handed_over: bool) -> None:
    """Check that a checkpoint without one of its files is not published, if the disk refuses this file and takes those after
    it.
    """
    found = bench(tmp_path, rounds_go_on=False)
    found.pending.begin(3, [], 0.0)
    if handed_over:
        monkeypatch.setattr(found.shard, "hand_over", lambda version: StateOfTwo(found.shard))
    found.pending.publish()
    found.pending.finish()
    real, refused = staging.StagedCheckpoint.add_content, list[str]()

    def add(self: staging.StagedCheckpoint, name: str, *arguments: Any) -> Any:
        if name == checkpoint.OPTIMIZER and not refused:
            refused.append(name)
            raise OSError(errno.ENOSPC, "no room")
        return real(self, name, *arguments)

    monkeypatch.setattr(staging.StagedCheckpoint, "add_content", add)
    found.pending.begin(5, [], 0.0)
    for rank in (1, 2) if handed_over else ():
        found.pending.join(StatePart(rank, 5, b"%d" % rank))
    found.pending.publish()
    assert found.published == [3]
    assert refused
    assert [step for step, _ in reasons(tmp_path, "not saved")] == [5]
    assert checkpoint.step_of(checkpoint.latest(tmp_path)) == 3  # type: ignore[arg-type]
