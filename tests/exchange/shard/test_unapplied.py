"""A stop under ssp or asp keeps the gradients that wait to be applied."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from psnode.errors import CheckpointError
from psnode.exchange.shard.consistency import Bounded, Synchronous
from psnode.exchange.shard.rounds import Origin, Rounds, Slot
from psnode.exchange.shard.unapplied import pack, unpack
from psnode.protocol.wire import Flag, Frame, Kind
from psnode.records import checkpoint
from psnode.records.checkpoint import Checkpoint
from psnode.records.staging import StagedCheckpoint


def gradient(rank: int, group: int, based: int) -> Frame:
    body = np.frombuffer(f"{rank}/{group}/{based}".encode(), np.uint8)
    return Frame(Kind.GRADIENT, Flag.PARTIAL, rank, group, based + 1, based, body)


def offered(frame: Frame) -> tuple[Origin, Frame]:
    return Origin(Slot(frame.group), frame.sender, frame.version), frame


def stopped() -> Rounds[Frame]:
    """Return the rounds of three workers and two groups at version 1, which the gradients of worker 1 made; a gradient of
    worker 2 waits.
    """
    rounds = Rounds[Frame]([Slot(0), Slot(1)], Bounded(None), by_rank=True, add=lambda frame: None, close=lambda slot: None)
    rounds.admit([1, 2, 3], 0)
    rounds.open(0)
    assert all(rounds.offer(*offered(gradient(1, group, 0))) for group in (0, 1))
    assert rounds.offer(*offered(gradient(2, 0, 0)))  # after its group was closed
    return rounds


def names(frames: list[Frame]) -> list[tuple[int, int, int]]:
    return sorted((frame.sender, frame.group, frame.version) for frame in frames)


def test_what_comes_behind_the_last_round_waits_once() -> None:
    rounds = stopped()
    assert rounds.keep(*offered(gradient(2, 1, 0)))
    assert rounds.keep(*offered(gradient(3, 1, 0)))
    assert not rounds.keep(*offered(gradient(3, 1, 0)))
    assert not rounds.keep(*offered(gradient(4, 0, 0)))
    assert not rounds.keep(*offered(gradient(3, 2, 0)))
    assert names(rounds.waiting) == [(2, 0, 0), (2, 1, 0), (3, 1, 0)]


def test_where_late_gradients_are_dropped_none_waits() -> None:
    rounds = Rounds[Frame]([Slot(0)], Synchronous(1), by_rank=True, add=lambda frame: None, close=lambda slot: None)
    rounds.admit([1, 2], 0)
    rounds.open(0)
    assert not rounds.keep(*offered(gradient(2, 0, 0)))
    assert rounds.waiting == []


def test_the_next_round_takes_what_has_waited_whoever_is_there(tmp_path: Path) -> None:
    draft = StagedCheckpoint(tmp_path, 1)
    draft.add_tensors(checkpoint.WAITING, pack(stopped().waiting))
    found = unpack(Checkpoint.open(draft.publish({"workers": 3})))
    assert [(bytes(frame.body).decode(), frame.flags) for frame in found] == [("2/0/0", Flag.PARTIAL)]
    added: list[Frame] = []
    rounds = Rounds[Frame]([Slot(0), Slot(1)], Bounded(None), by_rank=True, add=added.append, close=lambda slot: None)
    rounds.admit([1], 1)  # worker 2 no longer takes part
    rounds.restore(map(offered, found))
    rounds.open(1)
    assert rounds.offer(*offered(gradient(1, 1, 1)))
    assert names(added) == [(1, 1, 1), (2, 0, 0)]
    assert rounds.waiting == []


@pytest.mark.parametrize("name", ["1/2/3", "1/1/0/0", "a/1/0/0/0", ""])
def test_a_name_that_is_no_gradients_is_refused(tmp_path: Path, name: str) -> None:
    draft = StagedCheckpoint(tmp_path, 1)
    draft.add_tensors(checkpoint.WAITING, {name: torch.zeros(3, dtype=torch.uint8)})
    with pytest.raises(CheckpointError, match="no gradient"):
        unpack(Checkpoint.open(draft.publish({"workers": 3})))
