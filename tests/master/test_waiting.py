"""A stop under ssp or asp takes along gradients that wait, the parts that were applied, and places in the data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from psnode.config import Config
from psnode.errors import CheckpointError
from psnode.exchange.shard.consistency import Bounded, Synchronous
from psnode.exchange.shard.rounds import Rounds
from psnode.master.applied import Applied, applied_before
from psnode.master.waiting import pack, unpack
from psnode.protocol.wire import Flag, Frame, Kind
from psnode.records import checkpoint
from psnode.records.checkpoint import Checkpoint
from psnode.records.staging import StagedCheckpoint
from psnode.tasks.data.sampler import Sampler


def gradient(rank: int, group: int, based: int) -> Frame:
    body = np.frombuffer(f"{rank}/{group}/{based}".encode(), np.uint8)
    return Frame(Kind.GRADIENT, Flag.PARTIAL, rank, group, based + 1, based, body)


def stopped() -> Rounds:
    """Three workers after version 1 of two groups, made of the gradients of worker 1."""
    rounds = Rounds(2, Bounded(None), by_rank=True, add=lambda frame: None, close=lambda group: None)
    rounds.admit([1, 2, 3], 0)
    rounds.open(0)
    assert all(rounds.offer(gradient(1, group, 0)) for group in (0, 1))
    assert rounds.offer(gradient(2, 0, 0))  # behind the end of its group
    return rounds


def names(frames: list[Frame]) -> list[tuple[int, int, int]]:
    return sorted((frame.sender, frame.group, frame.version) for frame in frames)


def test_what_comes_behind_the_last_round_waits_once() -> None:
    rounds = stopped()
    assert rounds.keep(gradient(2, 1, 0))
    assert rounds.keep(gradient(3, 1, 0))
    assert not rounds.keep(gradient(3, 1, 0))
    assert not rounds.keep(gradient(4, 0, 0))
    assert not rounds.keep(gradient(3, 2, 0))
    assert names(rounds.waiting) == [(2, 0, 0), (2, 1, 0), (3, 1, 0)]


def test_where_late_gradients_are_dropped_none_waits() -> None:
    rounds = Rounds(1, Synchronous(1), by_rank=True, add=lambda frame: None, close=lambda group: None)
    rounds.admit([1, 2], 0)
    rounds.open(0)
    assert not rounds.keep(gradient(2, 0, 0))
    assert rounds.waiting == []


def test_the_next_round_takes_what_has_waited_whoever_is_there(tmp_path: Path) -> None:
    draft = StagedCheckpoint(tmp_path, 1)
    draft.add_tensors(checkpoint.WAITING, pack(stopped().waiting))
    found = unpack(Checkpoint.open(draft.publish({"workers": 3})))
    assert [(bytes(frame.body).decode(), frame.flags) for frame in found] == [("2/0/0", Flag.PARTIAL)]
    added: list[Frame] = []
    rounds = Rounds(2, Bounded(None), by_rank=True, add=added.append, close=lambda group: None)
    rounds.admit([1], 1)  # worker 2 is no more
    rounds.restore(found)
    rounds.open(1)
    assert rounds.offer(gradient(1, 1, 1))
    assert names(added) == [(1, 1, 1), (2, 0, 0)]
    assert rounds.waiting == []


@pytest.mark.parametrize("name", ["1/2/3", "1/1/0/0", "a/1/0/0/0", ""])
def test_a_name_that_is_no_gradients_is_refused(tmp_path: Path, name: str) -> None:
    draft = StagedCheckpoint(tmp_path, 1)
    draft.add_tensors(checkpoint.WAITING, {name: torch.zeros(3, dtype=torch.uint8)})
    with pytest.raises(CheckpointError, match="no gradient"):
        unpack(Checkpoint.open(draft.publish({"workers": 3})))


def test_a_gradient_counts_once_also_across_a_stop(tmp_path: Path) -> None:
    """Of three groups, one may be applied before a stop and two behind it."""
    config = Config(consistency="asp")
    before = applied_before(config, None)
    assert before is not None
    before.add({(1, 1), (2, 1)})
    before.add({(1, 1), (1, 3)})
    draft = StagedCheckpoint(tmp_path, 2)
    draft.add("x", b"")
    found = Checkpoint.open(draft.publish({"workers": 2, **before.facts()}))
    behind = applied_before(config, found)
    assert behind is not None and behind.gradients == 3
    behind.add({(1, 3), (2, 2)})
    assert behind.gradients == 4
    assert applied_before(Config(consistency="kofn", num_aggregate=1), found) is None


def test_a_run_that_did_not_count_does_not_begin_to(tmp_path: Path) -> None:
    draft = StagedCheckpoint(tmp_path, 2)
    draft.add("x", b"")
    assert applied_before(Config(consistency="ssp"), Checkpoint.open(draft.publish({"workers": 2}))) is None
    assert Applied().facts() == {"applied": {"gradients": 0, "newest": {}}}


@given(st.integers(0, 200), st.integers(1, 6), st.integers(1, 6), st.integers(20, 90), st.integers(-5, 5))
def test_a_place_among_others_leaves_out_less_than_a_step_and_repeats_nothing(
    place: int, before: int, now: int, length: int, shift: int
) -> None:
    """Counted in examples: those that all have taken of the epoch by then, and the place of the first behind it."""
    batch = 3
    finished = Sampler(length, 0, now, batch, shift=shift).finished(place, before)
    epoch, within = divmod(place, length // (before * batch))
    taken = within * before * batch
    an_epoch = length // (now * batch)
    next_epoch, next_within = divmod(finished + shift, an_epoch)
    if (next_epoch, next_within) == (epoch + 1, 0):
        assert length - taken < (now + before) * batch + now * batch
    else:
        assert next_epoch == epoch
        assert taken <= next_within * now * batch < taken + now * batch
    assert before != now or finished + shift == place
