"""Shards on workers, one of which is lost in the middle of a round: real servers, and the master's handle of them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from psnode.codecs import get_codec
from psnode.codecs.rng import Key
from psnode.config import Config
from psnode.config.resolve import resolve
from psnode.errors import DeadlineExceededError, PayloadError, PeerLostError, PsnodeError, TransportError
from psnode.exchange.routes.topologies import gather
from psnode.exchange.shard.consistency import Synchronous
from psnode.exchange.shard.remote import distributed_shard
from psnode.exchange.shard.remote.distributed_shard import DistributedShard
from psnode.exchange.shard.remote.shard_messages import pack_event, pack_result, unpack_event
from psnode.exchange.shard.remote.shard_server import ShardServer
from psnode.exchange.shard.shard_events import GroupClosed, Refused
from psnode.exchange.update.served_model import ServedModel
from psnode.plans.coding import Coding
from psnode.plans.roles import Layout
from psnode.protocol import wire
from psnode.protocol.channel import SHARD_TAG, TAG, FrameChannel, RemoteFailureError
from psnode.protocol.messages import Start
from psnode.protocol.round import Round
from psnode.protocol.wire import Bytes, Flag, Frame, Kind
from psnode.records.history import AddedGradient
from psnode.records.timeline import Tracer
from psnode.transport.loopback import loopback_group
from tests.exchange.shard.small import small_plan

Floats = npt.NDArray[np.float32]
RATE = 0.5
ALL = tuple(AddedGradient(rank, 1, 0) for rank in range(1, 5))
PATIENCE = 30.0  # seconds; tests of silence take less


def network() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3), nn.Linear(3, 2))


class Job:
    """A master's handle and the shards of `workers` workers, whose gradients the test sends. Orders of a round go through the
    transport.
    """

    def __init__(self, workers: int, **settings: Any) -> None:
        self.ends, self.workers = loopback_group(workers + 1), range(1, workers + 1)
        self.model = network()
        config = Config(lr=RATE, scheme="dense", **settings)
        self.plan = plan = small_plan(self.model, config, "layer")
        routes, coding = gather(Layout(workers), plan), Coding(plan, resolve(config))
        weights = ServedModel(self.model, plan, torch.empty(plan.size))
        self.start = weights.vector.clone()
        self.told: dict[int, list[int]] = {rank: [] for rank in self.workers}
        start = Start(plan.to_dict(), 0, 0, 9, 9, None, False)
        self.servers = {
            rank: ShardServer(
                self.ends[rank], start, coding, config, Synchronous(workers), routes, self.start, Tracer(rank, enabled=False),
                withdrawn=self.told[rank].append,
            )
            for rank in self.workers
        }  # fmt: skip
        self.link = FrameChannel(self.ends[0])
        self.shard = DistributedShard(self.link, plan, routes, weights, lambda now: RATE, PATIENCE)
        self.shard.admit(self.workers, 0)
        self.shard.open(Round.after(0))

    def values(self, rank: int, version: int = 0) -> Floats:
        return np.random.default_rng([rank, version]).standard_normal(self.plan.size).astype(np.float32)

    def frame(self, rank: int, group: int, version: int = 0) -> Bytes:
        found = self.plan.groups[group]
        making = wire.GroupFrame(len(found.segments), 8 * found.size + 1024)
        for segment in found.segments:
            part = self.values(rank, version)[segment.start : segment.stop].reshape(segment.shape)
            making.take(get_codec(segment.codec).encode(part, Key.derive(0), out=making.room).nbytes)
        return making.seal(Kind.GRADIENT, sender=rank, job=0, group=group, step=version + 1, version=version)

    def send(self, rank: int, to: Sequence[int], groups: Sequence[int] | None = None, version: int = 0) -> None:
        for group in range(len(self.plan.groups)) if groups is None else groups:
            for receiver in to:
                self.ends[rank].send(receiver, SHARD_TAG, (self.frame(rank, group, version),))

    def skip(self, rank: int, to: Sequence[int]) -> None:
        for receiver in to:
            sealed = wire.pack(Kind.SKIP_STEP, b"nan", sender=rank, job=0, step=1)
            self.ends[rank].send(receiver, SHARD_TAG, (sealed,))

    def die(self, rank: int) -> None:
        self.servers.pop(rank).close()
        self.ends[rank].die("it was killed")

    def closed(self, seconds: float = 20.0) -> list[list[int]]:
        """Run the master's loop until all groups are closed. Return by group the ranks whose gradients were added."""
        found: dict[int, list[int]] = {}
        end = time.monotonic() + seconds
        while len(found) < len(self.plan.groups):
            try:
                event = self.link.next(end - time.monotonic())
            except PeerLostError as lost:
                self.shard.withdraw(lost.rank)
                continue
            event = self.shard.take(event) if isinstance(event, Frame) else event
            if isinstance(event, GroupClosed):
                assert event.group not in found
                found[event.group] = [each.rank for each in event.added]
        return [found[group] for group in range(len(self.plan.groups))]

    def expected(self, added: Sequence[Sequence[int]]) -> torch.Tensor:
        """Return the weights of the first version: in each group, the start minus the rate times the mean gradient of these
        ranks.
        """
        found = self.start.clone()
        for group, ranks in zip(self.plan.groups, added, strict=True):
            where = slice(group.start, group.stop)
            if ranks:
                mean = np.mean([self.values(rank)[where] for rank in ranks], axis=0)
                found[where] -= RATE * torch.from_numpy(mean)
        return found

    def weights(self) -> list[torch.Tensor]:
        """Return the weights of every live worker."""
        found = []
        for rank in self.shard._calls.ranks:
            [answer] = self.shard._calls.ask("state", PATIENCE, to=[rank]).values()
            found.append(answer.body.copy())
        return found

    def close(self) -> None:
        for server in self.servers.values():
            server.close()


@pytest.fixture
def make() -> Iterator[Any]:
    jobs: list[Job] = []

    def new(*given: Any, **named: Any) -> Job:
        jobs.append(Job(*given, **named))
        return jobs[-1]

    yield new
    for job in jobs:
        job.close()


def next_loss(job: Job) -> str:
    """Return the text of the next loss that reaches the loop. Frames before it are dropped."""
    while True:
        try:
            assert isinstance(job.link.next(PATIENCE), Frame)
        except PeerLostError as lost:
            return str(lost)


def settle(job: Job) -> None:
    """Wait until all shards have processed the earlier messages: an order is carried out after them."""
    job.shard._calls.results("missing", PATIENCE)


def test_a_gradient_that_one_survivor_has_counts_at_all_and_one_that_none_has_at_none(make: Any) -> None:
    job = make(4)
    job.send(2, [3], [0])  # to one survivor
    job.send(2, [1, 3, 4], [1])  # to all
    settle(job)
    for rank in (1, 3, 4):
        job.send(rank, [1, 3, 4])
    settle(job)
    job.die(2)
    added = job.closed()
    assert added == [[1, 2, 3, 4], [1, 2, 3, 4], [1, 3, 4]]
    first, *others = job.weights()
    assert all((other == first).all() for other in others)
    model, expected = job.shard.state().model, job.expected(added)
    for name, where in job.plan.slices().items():
        torch.testing.assert_close(model[name].reshape(-1), expected[where])
    assert {rank: job.told[rank] for rank in (1, 3, 4)} == {1: [2], 3: [2], 4: [2]}


def test_a_shard_whose_death_is_announced_late_does_not_contradict_the_others(make: Any) -> None:
    """Check a death that is announced late: rank 3 has closed all groups with the gradient of rank 2, which no other shard
    has, and dies with rank 2.

    The transport announces a death only after the last messages of the dead rank, so the master asks the other shards before
    it knows of rank 3's death. All groups must be closed with the gradients of ranks 1, 3 and 4.
    """
    job = make(4)
    job.send(2, [3])
    for rank in (1, 3, 4):
        job.send(rank, [1, 3, 4])
    heard = [job.link.next(PATIENCE) for _ in range(4)]
    assert [unpack_event(frame.body, 3).added for frame in heard if b"closed" in bytes(frame.body)] == [ALL] * 3
    job.link.inbox.put_back(heard)
    job.servers.pop(3).close()
    job.ends[3]._closed = job.ends[3]._dead = True
    job.die(2)
    assert job.closed() == [[1, 3, 4]] * 3
    assert job.shard._calls.ranks == [1, 4]


def test_the_next_round_is_one_of_the_survivors(make: Any) -> None:
    job = make(3)
    job.die(2)
    for rank in (1, 3):
        job.send(rank, [1, 3])
    assert job.closed() == [[1, 3]] * 3
    job.shard.open(Round.after(1))
    for rank in (1, 3):
        job.send(rank, [1, 3], version=1)
    assert job.closed() == [[1, 3]] * 3


def test_a_gradient_that_was_faster_than_the_order_to_open_its_round_counts_at_all(make: Any) -> None:
    job = make(3)
    for rank in job.workers:
        job.send(rank, job.workers)
    assert job.closed() == [[1, 2, 3]] * 3
    job.send(2, [3], [0], version=1)
    settle(job)
    job.shard.open(Round.after(1))
    for rank in (1, 3):
        job.send(rank, [1, 3], version=1)
    job.die(2)
    assert job.closed() == [[1, 2, 3], [1, 3], [1, 3]]


def test_a_flush_takes_two_orders_and_one_more_for_every_worker_that_passes_frames_on(make: Any) -> None:
    job = make(5)
    job.send(2, [3], [0, 2])
    job.send(2, [4], [1])
    settle(job)
    for rank in (1, 3, 4, 5):
        job.send(rank, [1, 3, 4, 5])
    settle(job)
    before = job.shard._calls._number
    job.die(2)
    assert job.closed() == [[1, 2, 3, 4, 5]] * 3
    assert job.shard._calls._number == before + 4


def test_a_death_between_two_rounds_asks_no_shard(make: Any) -> None:
    job = make(3)
    for rank in job.workers:
        job.send(rank, job.workers)
    assert job.closed() == [[1, 2, 3]] * 3
    before = job.shard._calls._number
    job.die(1)
    with pytest.raises(DeadlineExceededError):
        job.closed(0.3)
    assert job.shard._calls._number == before + 1
    job.shard.open(Round.after(1))
    for rank in (2, 3):
        job.send(rank, [2, 3], version=1)
    assert job.closed() == [[2, 3]] * 3


def test_a_frame_that_comes_behind_the_answer_is_dropped(make: Any) -> None:
    job = make(4)
    for rank in (1, 3, 4):
        job.send(rank, [1, 3, 4])
    settle(job)
    late = [job.frame(2, group) for group in range(3)]
    asked = []
    real = job.shard._calls.results

    def answered(name: str, *given: Any, **named: Any) -> Any:
        found = real(name, *given, **named)
        if name == "have":
            for sealed in late:
                job.ends[2].send(3, SHARD_TAG, (sealed,))
            asked.append(name)
        return found

    job.shard._calls.results = answered
    job.shard.withdraw(2)
    assert asked == ["have"]
    assert job.closed() == [[1, 3, 4]] * 3


def test_a_step_that_was_left_out_is_left_out_by_all_though_one_alone_has_heard_of_it(make: Any) -> None:
    job = make(4)
    job.send(2, [1, 3, 4], [2])
    job.skip(2, [4])
    settle(job)
    for rank in (1, 3, 4):
        job.send(rank, [1, 3, 4])
    settle(job)  # rank 4 has closed all groups, the others have not
    job.die(2)
    assert job.closed() == [[1, 3, 4], [1, 3, 4], [1, 2, 3, 4]]


def test_what_a_silent_worker_sends_later_is_dropped(make: Any) -> None:
    job = make(3)
    job.send(2, [1], [0])
    for rank in (1, 3):
        job.send(rank, [1, 2, 3])
    settle(job)
    job.shard.withdraw(2)
    job.send(2, [1, 2, 3])
    assert job.closed() == [[1, 2, 3], [1, 3], [1, 3]]
    event = wire.unpack(wire.pack(Kind.EVENT, b"[]", sender=2, job=0), job=0)
    assert job.shard.take(event) is None


def test_a_second_silent_worker_is_withdrawn_after_the_first(make: Any) -> None:
    """Check that both workers are withdrawn if rank 2 dies and rank 3 does not answer, although rank 3's connection is alive."""
    job = make(4)
    for rank in (1, 4):
        job.send(rank, [1, 3, 4])
    job.send(2, [3], [0])
    settle(job)
    job.servers.pop(3).close()  # its process is stopped
    job.shard._patience = 1.0
    job.shard.withdraw(2)
    assert job.closed() == [[1, 4]] * 3
    assert job.told[1] == job.told[4] == [2, 3]


def test_workers_that_fell_silent_together_are_not_waited_for_one_after_another(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make(4)
    for rank in (1, 4):
        job.send(rank, [1, 4])
    settle(job)
    monkeypatch.setattr(distributed_shard, "ANSWER_SECONDS", 0.3)
    for rank in (2, 3):
        job.servers.pop(rank).close()
    assert job.shard.missing == {2, 3}
    answers, real = [], job.link.next

    def heard(seconds: float) -> object:
        assert answers != [1, 4], "a silent worker is waited for"
        event = real(seconds)
        if isinstance(event, Frame) and event.kind is Kind.ANSWER:
            answers[:] = sorted([*answers, event.sender])
        return event

    with monkeypatch.context() as patch:
        patch.setattr(job.link, "next", heard)
        job.shard.withdraw(2)
    assert answers == [1, 4]
    assert next_loss(job) == "rank 3 is lost: its shard does not answer"
    job.shard.withdraw(3)
    settle(job)
    assert job.told[1] == job.told[4] == [2, 3]


def test_a_worker_that_is_heard_again_is_waited_for(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    job = make(3)
    monkeypatch.setattr(distributed_shard, "ANSWER_SECONDS", 0.3)
    send = job.ends[3].send
    held: list[Any] = []
    monkeypatch.setattr(job.ends[3], "send", lambda *given: held.append(given))
    assert 3 in job.shard.missing
    monkeypatch.setattr(job.ends[3], "send", send)
    for given in held:  # the answer comes late
        send(*given)
    assert job.shard._calls._silent == {3}
    assert job.shard.take(job.link.next(PATIENCE)) is None
    assert job.shard._calls._silent == set()
    for rank in (1, 3):
        job.send(rank, [1, 3])
    job.shard.withdraw(2)
    assert job.closed() == [[1, 3]] * 3
    assert job.told[1] == job.told[3] == [2]


@pytest.mark.parametrize("senders", [(1, 3), (1, 2, 3)], ids=["before its gradient", "after its gradient"])
def test_the_norm_of_a_version_is_known_without_the_lost_worker(make: Any, senders: Sequence[int]) -> None:
    """Check the norm if a worker is lost before or after it has sent its gradient. In the second case all shards but its own
    have closed their groups.
    """
    job = make(3, clip_grad_norm=1e9)
    for rank in senders:
        job.send(rank, [1, 3])
    settle(job)
    job.die(2)
    added = job.closed()
    mean = np.mean([job.values(rank) for rank in senders], axis=0)
    assert added == [list(senders)] * 3
    assert job.shard.gradient_norm == pytest.approx(float(np.linalg.norm(mean)), rel=1e-5)


def test_a_worker_that_fails_meanwhile_is_not_waited_for_and_its_report_is_kept(make: Any) -> None:
    job = make(4)
    for rank in (1, 4):
        job.send(rank, [1, 3, 4])
    settle(job)
    job.servers.pop(3).close()
    FrameChannel(job.ends[3]).fail(0, ValueError("a bug"))
    job.shard.withdraw(2)
    with pytest.raises(RemoteFailureError, match="a bug"):
        job.link.next(PATIENCE)
    job.shard.withdraw(3)
    assert job.closed() == [[1, 4]] * 3


@pytest.mark.parametrize("lie", [5, {"0": 1}, ["0"], [[0]]])
def test_an_answer_that_names_no_groups_ends_the_job_and_names_its_sender(make: Any, lie: Any) -> None:
    job = make(3)
    job.servers.pop(3).close()
    answer = wire.pack(Kind.ANSWER, pack_result(lie), sender=3, job=0, step=job.shard._calls._number + 1)
    job.ends[3].send(0, TAG, (answer,))
    with pytest.raises(PsnodeError, match=r"^rank 3 has sent a message about its part of the weights that cannot be true"):
        job.shard.withdraw(2)


@pytest.mark.parametrize("dead", [True, False], ids=["dead", "silent"])
def test_another_worker_hands_over_the_state_in_place_of_the_first(make: Any, dead: bool) -> None:
    """Check that the next worker hands over the state if the first is dead or silent, and that the loop still gets the loss
    of the first.
    """
    job = make(3)
    for rank in job.workers:
        job.send(rank, job.workers)
    added = job.closed()
    if dead:
        job.die(1)
    else:
        job.servers.pop(1).close()
        job.shard._patience = 1.0
    model, expected = job.shard.state().model, job.expected(added)
    for name, where in job.plan.slices().items():
        torch.testing.assert_close(model[name].reshape(-1), expected[where])
    assert next_loss(job).startswith(f"rank 1 is lost: {'its process has died' if dead else 'its shard does not answer'}")
    refused = Refused(0, 2, PayloadError("x"))
    job.shard.open(Round.after(1))
    body = np.frombuffer(pack_event(refused), np.uint8)
    assert job.shard.take(Frame(Kind.EVENT, Flag.NONE, 2, 0, 0, 0, body)) is None
    job.shard.withdraw(1)
    assert str(job.shard.take(Frame(Kind.EVENT, Flag.NONE, 2, 0, 0, 0, body))) == str(refused)


def test_the_last_worker_cannot_be_withdrawn(make: Any) -> None:
    job = make(2)
    job.shard.withdraw(1)
    with pytest.raises(TransportError, match=r"^the run cannot go on without rank 2"):
        job.shard.withdraw(2)
