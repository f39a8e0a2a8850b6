"""Workers that delay a round, a checkpoint or the job's end: which are put aside, and when."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

from psnode.config import Config
from psnode.exchange.flow_control import FlowControl
from psnode.exchange.routes.route import PassedOnRoute
from psnode.exchange.shard.consistency import Synchronous
from psnode.exchange.shard.shard import Shard
from psnode.master.deadlines import AdaptiveTimeout, RoundTimer
from psnode.master.events import Events
from psnode.master.job_state import QUORUM, JobState
from psnode.master.member_list import Members
from psnode.master.membership import Membership
from psnode.master.recorder import StepRecorder
from psnode.protocol.channel import FrameChannel
from psnode.protocol.round import Round
from psnode.records.metrics import EVENTS, read_records
from psnode.transport.clock import Clock
from psnode.transport.loopback import loopback_group
from tests.exchange.shard.small import small_shard
from tests.master.checkpoints.test_pending import bench


def membership(folder: Path, seconds: list[float], route: PassedOnRoute | None = None) -> Membership:
    """Return the membership of three workers in the first round of a synchronous run. `seconds` is the clock."""
    clock, link = Clock(lambda: seconds[0]), FrameChannel(loopback_group(4)[0])
    members = Members([1, 2, 3], clock)
    shard = small_shard(nn.Linear(2, 3), Config(scheme="dense"), link=link, route=route)
    shard.admit([1, 2, 3], 0)
    shard.open(Round.after(0))
    pending = bench(folder, rounds_go_on=False).pending
    timer = RoundTimer(AdaptiveTimeout(6.0, 20.0), clock)
    timer.begin(pause=False)
    return Membership(
        members, FlowControl(0), timer, link, Config(train_dir=folder, min_workers=1),
        JobState(clock, 60.0), Synchronous(3), shard, pending, StepRecorder(3, 10, 0), Events(folder),
    )  # fmt: skip


def test_who_holds_up_the_open_round_is_put_aside(tmp_path: Path) -> None:
    seconds = [0.0]
    found = membership(tmp_path, seconds)
    for rank in (1, 3):
        found.shard.excuse(rank, 0)
    seconds[0] = 6.5
    found.on_overdue(frozenset({1}), held=False)
    assert found.members.live == {1, 3} and found.members.is_suspended(2)
    assert found.shard.missing == frozenset()


def test_who_waits_for_the_weights_of_another_is_not_put_aside_with_it(tmp_path: Path) -> None:
    """Check silent ranks in a chain: rank 2 gets its weights from rank 1, and rank 3 from rank 2. Only one rank is put aside
    at a time.
    """
    seconds = [0.0]
    found = membership(tmp_path, seconds, PassedOnRoute(0, (1, 2, 3), (1, 2, 3), 1))
    for late, live in ((6.5, {2, 3}), (13.5, {3})):
        seconds[0] = late
        found.on_overdue(frozenset(), held=False)
        assert found.members.live == live
        assert found.cut_off == {2, 3}
    events = [line["reason"] for line in read_records(tmp_path / EVENTS) if line["event"] == "bypassed"]
    assert events == ["rank 0 sends the weights to ranks 2, 3 itself", "rank 0 sends the weights to rank 3 itself"]


@pytest.mark.parametrize("held", [False, True])
def test_whose_part_of_a_checkpoint_is_missing_is_put_aside_if_that_holds_up_the_next_version(tmp_path: Path, held: bool) -> None:
    seconds = [0.0]
    found = membership(tmp_path, seconds)
    for rank in (1, 2, 3):
        found.shard.excuse(rank, 0)
    found.pending.begin(1, [2], 0.0)
    seconds[0] = 6.5
    found.on_overdue(frozenset(), held=held)
    assert found.members.is_suspended(2) == held and found.members.live == ({1, 3} if held else {1, 2, 3})


@pytest.mark.parametrize("seconds_taken", [6.5, 110.0])
def test_behind_the_last_round_only_who_owes_something_is_put_aside(tmp_path: Path, seconds_taken: float) -> None:
    """Check a job that stops. No round opens, so no worker has to send a gradient; but a worker may still have to send a
    trace or a part of the last checkpoint.
    """
    seconds = [0.0]
    found = membership(tmp_path, seconds)
    found.job_state.stopping = True
    seconds[0] = seconds_taken
    found.on_overdue(frozenset({3}), held=False)
    assert found.members.live == {1, 2}
    found.pending.begin(1, [1, 2], 0.0)
    found.on_overdue(frozenset({1, 2}), held=False)
    assert found.members.live == ({1, 2} if seconds_taken < 100 else frozenset())


@pytest.mark.parametrize(("missing", "live"), [({2}, {1, 3}), ({2, 9}, {1, 2, 3})])
def test_workers_that_may_lack_weights_of_a_missing_server_are_not_put_aside_before_it_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: set[int], live: set[int]
) -> None:
    monkeypatch.setattr(Shard, "holders", frozenset({9}))
    monkeypatch.setattr(Shard, "missing", frozenset(missing))
    seconds = [0.0]
    found = membership(tmp_path, seconds)
    seconds[0] = 6.5
    found.on_overdue(frozenset(), held=False)
    assert found.members.live == live


def test_a_silent_worker_is_lost_where_it_cannot_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shard, "readmits", False)
    seconds = [0.0]
    found = membership(tmp_path, seconds)
    for rank in (1, 3):
        found.shard.excuse(rank, 0)
    seconds[0] = 6.5
    found.on_overdue(frozenset(), held=False)
    assert found.members.live == {1, 3} and not found.members.is_suspended(2)
    found.members.hear(2, 1)
    assert found.members.readmit() == {}
    [told] = read_records(tmp_path / EVENTS)
    assert (told["event"], told["rank"]) == ("lost", 2)
    assert told["reason"].startswith("not heard of for 6.5 s, and it cannot come back")


@pytest.mark.parametrize(("readmits", "stops"), [(True, True), (False, False)])
def test_without_any_worker_no_stop_with_a_checkpoint_is_promised_if_the_weights_were_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, readmits: bool, stops: bool
) -> None:
    monkeypatch.setattr(Shard, "readmits", readmits)
    found = membership(tmp_path, [0.0])
    for rank in (3, 1, 2):
        found.lose(rank, "it was killed")
    assert [event["event"] for event in read_records(tmp_path / EVENTS)] == ["lost"] * 3 + ["quorum"] * stops
    assert (found.job_state.stop_reason == QUORUM) == stops
