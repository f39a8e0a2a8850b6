"""The master's handle of shards on workers: impossible reports are refused, late answers are dropped, and silent ranks are
named.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from psnode.errors import DivergedError, PayloadError, PsnodeError, TransportError, WireError
from psnode.exchange.flat_model import describe
from psnode.exchange.routes.topologies import gather, mesh
from psnode.exchange.shard.median_clipping import Clipped
from psnode.exchange.shard.remote.distributed_shard import DistributedShard
from psnode.exchange.shard.remote.shard_messages import Order, ShardEvent, pack_event, pack_files
from psnode.exchange.shard.shard_events import GroupClosed, NotApplied, Refused, Squares, StatePart, Took
from psnode.exchange.update.served_model import ServedModel
from psnode.plans.roles import Layout
from psnode.plans.rule import make_plan
from psnode.protocol import wire
from psnode.protocol.channel import SHARD_TAG, TAG, FrameChannel
from psnode.protocol.round import Round
from psnode.protocol.wire import Flag, Frame, Kind
from psnode.records import checkpoint
from psnode.records.history import AddedGradient
from psnode.transport.loopback import loopback_group


class Job:
    """A master and two workers; the model has two layers, each a group. Each worker is the root of one group, or of both
    groups if `routes` is gather.
    """

    def __init__(self, routes: Any = mesh) -> None:
        self.ends = loopback_group(3)
        self.model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
        plan = make_plan(describe(self.model), "identity", group_by="layer", min_compress_bytes=0)
        self.routes = routes(Layout(2), plan)
        self.groups = {route.root: group for group, route in enumerate(self.routes)}
        weights = ServedModel(self.model, plan, torch.empty(plan.size))
        self.plan = plan
        self.shard = DistributedShard(FrameChannel(self.ends[0]), plan, self.routes, weights, lambda now: 0.1, 0.2)
        self.shard.admit([1, 2], 0)
        self.shard.open(Round.after(0))

    def take(self, event: ShardEvent, sender: int = 1) -> object:
        body = np.frombuffer(pack_event(event), np.uint8)
        return self.shard.take(Frame(Kind.EVENT, Flag.NONE, sender, 0, 0, 0, body))

    def closed(self, rank: int, **changed: Any) -> GroupClosed:
        """Return the event with which the group of `rank` is closed in the first round."""
        return GroupClosed(self.groups[rank], 1, 8, (AddedGradient(1, 1, 0), AddedGradient(2, 1, 0)))._replace(**changed)

    def orders(self, rank: int) -> list[Order]:
        """Return the orders that have reached the shard of `rank`."""
        found = []
        while (arrival := self.ends[rank].poll(SHARD_TAG)) is not None:
            found.append(Order.from_bytes(wire.unpack(arrival.data, job=0).body, 0))
        return found

    def answer(self, rank: int, number: int, body: bytes) -> None:
        frame = wire.pack(Kind.ANSWER, body, sender=rank, job=0, step=number)
        self.ends[rank].send(0, TAG, (frame,))

    def sizes(self) -> dict[str, int]:
        """Return the number of weights of every tensor."""
        return {name: where.stop - where.start for name, where in self.plan.slices().items()}

    def state(self, rank: int, **changed: Any) -> bytes:
        """Return the state that the shard of `rank` sends as its answer: weights that all equal `rank`."""
        group = self.plan.groups[self.groups[rank]]
        names = [name for name, where in self.plan.slices().items() if group.start <= where.start < group.stop]
        model = {name: torch.full((self.sizes()[name],), float(rank)) for name in names}
        return pack_files({checkpoint.MODEL: model | changed}, {})


def test_events_of_the_open_round_are_taken_once() -> None:
    job = Job()
    assert job.take(job.closed(1)) == job.closed(1)
    with pytest.raises(PsnodeError, match=r"^rank 1 has sent .* cannot be true"):
        job.take(job.closed(1))
    assert job.take(job.closed(2), 2) == job.closed(2)
    job.shard.open(Round.after(1))
    assert job.take(job.closed(1, version=2)) == job.closed(1, version=2)


LIES = {
    "the group of another rank": lambda job: job.closed(2),
    "no group": lambda job: job.closed(1, group=99),
    "a negative number": lambda job: job.closed(1, group=-1),
    "another version": lambda job: job.closed(1, version=2),
    "a gradient of an unknown rank": lambda job: job.closed(1, added=(AddedGradient(7, 1, 0),)),
    "a negative square": lambda job: Squares({job.groups[1]: -1.0}, True),
    "squares of another rank": lambda job: Squares({job.groups[2]: 1.0}, True),
    "negative times": lambda job: Took(1, {"decode": -1.0}),
    "negative bytes": lambda job: Took(1, {}, -1),
    "a refused push of an unknown rank": lambda job: Refused(job.groups[1], 9, WireError("x")),
    "another rank's sum": lambda job: NotApplied(job.groups[2], (1,)),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_events_that_cannot_be_true_end_the_job_and_name_the_rank(lie: Any) -> None:
    job = Job()
    with pytest.raises(
        PsnodeError, match=r"^rank 1 has sent a message about its part of the weights that cannot be true"
    ) as told:
        job.take(lie(job))
    assert not isinstance(told.value, WireError)


def test_the_norm_is_told_to_all_shards_once_all_squares_have_come() -> None:
    job = Job()
    job.take(Squares({job.groups[1]: 9.0}, False))
    job.take(Squares({job.groups[2]: 16.0}, True), 2)
    assert job.shard.gradient_norm == 5.0
    for rank in (1, 2):
        assert job.orders(rank)[-1] == Order("norm", {"norm": 5.0, "counts": True})


def test_the_weights_are_put_together_from_answers_that_are_asked_for_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the answers are requested one by one, so that the master needs memory for only one answer in addition to
    the whole state.
    """
    job, asked = Job(), list[int]()
    real = job.shard._calls.order

    def order(name: str, to: Any = None, **arguments: Any) -> int:
        number = real(name, to, **arguments)
        [rank] = to
        asked.append(rank)
        job.answer(rank, number, job.state(rank))
        return number

    monkeypatch.setattr(job.shard._calls, "order", order)
    model = job.shard.state().model
    assert asked == [1, 2]
    for rank, group in job.groups.items():
        where = job.plan.groups[group]
        named = [name for name, place in job.plan.slices().items() if where.start <= place.start < where.stop]
        assert all(bool((model[name] == rank).all()) for name in named)


@pytest.mark.parametrize("broken", [b"", b"[]", pack_files({}, {})], ids=["nothing", "a list", "no weights"])
def test_an_answer_without_the_weights_ends_the_job(broken: bytes) -> None:
    job = Job()
    job.answer(1, 3, broken)
    job.answer(2, 3, job.state(2))
    with pytest.raises(PsnodeError, match=r"^rank 1 has sent a message about its part"):
        job.shard.state()


def test_weights_of_another_size_end_the_job() -> None:
    job = Job()
    [first, *_] = [name for name, where in job.plan.slices().items() if where.start == job.plan.groups[job.groups[1]].start]
    job.answer(1, 3, job.state(1, **{first: torch.zeros(1)}))
    job.answer(2, 3, job.state(2))
    with pytest.raises(PsnodeError, match=r"^rank 1 has sent a message about its part"):
        job.shard.state()


def test_a_silent_shard_is_named_and_other_frames_are_kept() -> None:
    job = Job()
    job.answer(2, 3, job.state(2))
    job.ends[2].send(0, TAG, (wire.pack(Kind.REPORT, b"{}", sender=2, job=0),))
    with pytest.raises(TransportError, match=r"^the run cannot go on without rank 1, silent for 0.2 s"):
        job.shard.state()
    assert FrameChannel(job.ends[0]).next(0.1).kind is Kind.REPORT  # type: ignore[attr-defined]


def test_late_answers_are_dropped() -> None:
    assert Job().shard.take(Frame(Kind.ANSWER, Flag.NONE, 1, 0, 1, 0, np.zeros(0, np.uint8))) is None


def piece(job: Job, rank: int, number: int, body: bytes, whole: int) -> StatePart | None:
    found = job.shard.take(Frame(Kind.ANSWER, Flag.NONE, rank, 0, number, whole, np.frombuffer(body, np.uint8)))
    assert found is None or isinstance(found, StatePart)
    return found


def test_state_is_handed_over_in_pieces_of_one_rank_after_another() -> None:
    job = Job()
    state = job.shard.hand_over(7)
    assert [[order.name for order in job.orders(rank)][2:] for rank in (1, 2)] == [["hand_over", "next_piece"], ["hand_over"]]
    assert state.ranks == {1, 2}
    one, two = job.state(1), job.state(2)
    assert piece(job, 1, 4, one[:100], len(one)) is None
    assert piece(job, 1, 4, one[:100], len(one)) is None  # an answer to an order that was answered
    assert piece(job, 2, 5, two, len(two)) is None  # of a rank that was not asked
    assert [[order.name for order in job.orders(rank)] for rank in (1, 2)] == [["next_piece"], []]
    assert piece(job, 1, 5, one[100:], len(one)) == StatePart(1, 7, one)
    assert [[order.name for order in job.orders(rank)] for rank in (1, 2)] == [[], ["next_piece"]]
    assert piece(job, 2, 6, two, len(two)) == StatePart(2, 7, two)
    assert [[order.name for order in job.orders(rank)] for rank in (1, 2)] == [[], []]
    assert [state.add(rank, body) for rank, body in ((1, one), (2, two))] == [False, True]
    for rank, group in job.groups.items():
        where = job.plan.groups[group]
        named = [name for name, place in job.plan.slices().items() if where.start <= place.start < where.stop]
        assert all(bool((state.state().model[name] == rank).all()) for name in named)


@pytest.mark.parametrize(("body", "whole"), [(b"", 10), (b"12345", 4), (b"", 0)])
def test_a_piece_of_another_size_ends_the_job(body: bytes, whole: int) -> None:
    job = Job()
    job.shard.hand_over(7)
    with pytest.raises(PsnodeError, match=r"^rank 1 has sent a message about its part of the weights that cannot be true"):
        piece(job, 1, 4, body, whole)


def test_a_piece_that_comes_while_another_answer_is_awaited_is_not_lost() -> None:
    job = Job()
    job.shard.hand_over(7)
    one = job.state(1)
    frame = wire.pack(Kind.ANSWER, one, sender=1, job=0, step=4, version=len(one))
    job.ends[1].send(0, TAG, (frame,))
    for rank in (1, 2):
        job.answer(rank, 5, b"[[]]")
    assert job.shard.missing
    found = FrameChannel(job.ends[0]).next(0.1)
    assert isinstance(found, Frame)
    assert job.shard.take(found) == StatePart(1, 7, one)


def test_pieces_of_an_earlier_state_are_dropped() -> None:
    job = Job()
    job.shard.hand_over(7)
    one = job.state(1)
    assert piece(job, 1, 4, one[:10], len(one)) is None
    job.shard.hand_over(9)
    assert piece(job, 1, 5, one[10:], len(one)) is None
    assert piece(job, 1, 7, one, len(one)) == StatePart(1, 9, one)


def test_of_shards_of_the_same_groups_the_first_hands_over() -> None:
    job = Job(gather)
    state = job.shard.hand_over(7)
    assert state.ranks == {1}
    assert [[order.name for order in job.orders(rank)][2:] for rank in (1, 2)] == [["hand_over", "next_piece"], []]
    content = pack_files({checkpoint.MODEL: {name: torch.full((size,), 7.0) for name, size in job.sizes().items()}}, {})
    assert state.add(1, content)
    assert all(bool((value == 7).all()) for value in state.state().model.values())


@pytest.mark.parametrize("broken", [b"", b"[]", pack_files({}, {})], ids=["nothing", "a list", "no weights"])
def test_state_without_the_weights_names_the_rank(broken: bytes) -> None:
    state = Job().shard.hand_over(7)
    with pytest.raises(PsnodeError, match=r"^rank 2 has sent a message about its part"):
        state.add(2, broken)


BOTH = (AddedGradient(1, 1, 0), AddedGradient(2, 1, 0))


def test_a_group_of_all_shards_is_closed_when_the_last_of_them_has_closed_it() -> None:
    job = Job(gather)
    assert job.take(GroupClosed(0, 1, 8, BOTH), 2) is None
    assert job.take(GroupClosed(1, 1, 8, BOTH), 2) is None
    assert job.take(GroupClosed(0, 1, 5, BOTH), 1) == GroupClosed(0, 1, 13, BOTH)
    with pytest.raises(PsnodeError, match=r"^rank 2 has sent .* cannot be true"):
        job.take(GroupClosed(0, 1, 8, BOTH), 2)
    assert job.take(GroupClosed(1, 1, 5, BOTH), 1) == GroupClosed(1, 1, 13, BOTH)


@pytest.mark.parametrize(
    "other", [{"added": BOTH[:1]}, {"added": BOTH[::-1]}, {"clipped": (Clipped(2, 1, 0.5),)}], ids=["fewer", "turned", "clipped"]
)
def test_shards_of_the_same_groups_that_add_different_gradients_end_the_job(other: dict[str, Any]) -> None:
    job = Job(gather)
    job.take(GroupClosed(0, 1, 0, BOTH), 1)
    with pytest.raises(DivergedError, match=r"^rank 2 has added other gradients to group 0 of version 1 than others"):
        job.take(GroupClosed(0, 1, 0, BOTH)._replace(**other), 2)


def test_of_shards_of_the_same_groups_the_first_speaks_and_answers_for_all() -> None:
    job = Job(gather)
    refused = Refused(0, 2, PayloadError("x"))
    assert job.take(refused, 2) is None
    assert str(job.take(refused, 1)) == str(refused)
    job.answer(1, 3, pack_files({checkpoint.MODEL: {name: torch.full((size,), 7.0) for name, size in job.sizes().items()}}, {}))
    assert all(bool((value == 7).all()) for value in job.shard.state().model.values())
    assert [[order.name for order in job.orders(rank)] for rank in (1, 2)] == [["admit", "open", "state"], ["admit", "open"]]


def test_a_frame_that_one_of_several_shards_cannot_read_ends_the_job() -> None:
    unreadable = WireError("its checksum is wrong", 2)
    told = r"^rank 1 cannot read a frame that others may have read: its checksum is wrong \(from rank 2\); go on with --resume$"
    with pytest.raises(TransportError, match=told):
        Job(gather).take(unreadable)


def test_shards_hear_of_a_gradient_left_out_from_its_sender_alone() -> None:
    for routes in (mesh, gather):
        job = Job(routes)
        job.shard.leave_out(2, 0)
        assert [order.name for order in job.orders(1)] == ["admit", "open"]


def test_shards_of_the_same_groups_hear_of_no_gradient_that_another_could_not_read() -> None:
    names = []
    for routes in (mesh, gather):
        job = Job(routes)
        job.shard.excuse(2, 0)
        names.append([order.name for order in job.orders(1)])
    assert names == [["admit", "open", "excuse"], ["admit", "open"]]


def test_shards_of_all_groups_know_the_norm_without_being_told() -> None:
    job = Job(gather)
    for rank in (1, 2):
        job.take(Squares({0: 9.0, 1: 16.0}, True), rank)
    assert job.shard.gradient_norm == 5.0
    assert [[order.name for order in job.orders(rank)] for rank in (1, 2)] == [["admit", "open"]] * 2
