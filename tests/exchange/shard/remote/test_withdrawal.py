"""The withdrawal of lost workers, in every order in which messages and deaths can come: all survivors add the same gradients."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from psnode.exchange.shard.consistency import Synchronous
from psnode.exchange.shard.remote.kept_frames import KeptFrames
from psnode.exchange.shard.remote.withdrawal import withdraw_from_all
from psnode.exchange.shard.rounds import Origin, Rounds, Slot
from psnode.protocol import wire
from psnode.protocol.wire import Bytes, Flag, Frame, Kind

MASTER = 0
JOB = 7


class SeenError(Exception):
    """Raised when the state has already been reached in another order."""


def gradient(rank: int, group: int) -> Bytes:
    return wire.pack(Kind.GRADIENT, bytes([rank, group]), sender=rank, job=JOB, group=group, step=1, version=0)


class Survivor:
    """A surviving worker's shard, reduced to its rounds. It takes frames, and orders of the master."""

    def __init__(self, rank: int, ranks: Sequence[int], groups: int) -> None:
        self.rank, self.groups, self.added = rank, groups, [list[int]() for _ in range(groups)]
        self.closed, self.gone, self.kept = set[int](), set[int](), KeptFrames()
        self.rounds = Rounds[Frame](
            [Slot(group) for group in range(groups)], Synchronous(len(ranks)), by_rank=True, add=self._add, close=self._close
        )
        self.rounds.admit(ranks, 0)
        self.rounds.open(0)

    def _add(self, frame: Frame) -> None:
        assert frame.group not in self.closed
        self.added[frame.group].append(frame.sender)

    def _close(self, slot: Slot) -> None:
        self.closed.add(slot.group)

    def offer(self, sealed: Bytes) -> None:
        frame = wire.unpack(sealed, job=JOB)
        if self.rounds.offer(Origin(Slot(frame.group), frame.sender, 0), frame):
            self.kept.add(frame)

    def take(self, message: Any) -> Any:
        """Carry out a message, and return the answer to an order."""
        match message:
            case ("gradient", int(sender), int(group)):
                if sender not in self.gone:
                    self.offer(gradient(sender, group))
            case ("skip", int(sender)):
                if sender not in self.gone:
                    self.rounds.excuse(sender, 0)
            case ("passed on", bytes(sealed)):
                self.offer(np.frombuffer(sealed, np.uint8))
            case ("have", {"rank": rank}):
                self.gone.add(rank)
                return self.kept.groups(rank)
            case ("hand", {"rank": rank, "groups": groups}):
                return self.kept.sealed(rank, groups, JOB)
            case ("withdraw", {"rank": rank}):
                self.gone.add(rank)
                self.rounds.withdraw(rank)
        return None

    @property
    def state(self) -> Any:
        kept = [self.kept.groups(rank) for rank in range(6)]
        return tuple(map(tuple, self.added)), tuple(sorted(self.closed)), tuple(sorted(self.gone)), tuple(map(tuple, kept))


@dataclass
class World:
    """A master that withdraws the ranks in `dying`, and survivors. Messages from one rank to another arrive in their order.

    `choices`: the events that happen first, each as an index into the events that are then possible; after these, always the
    first possible event.
    """

    choices: Sequence[int]
    seen: set[Any]
    dying: Sequence[int]
    survivors: Sequence[int]
    sent: dict[int, Sequence[Any]]  # by dying rank: (receiver, message) of all that it sent
    early: bool  # the gradients of survivors come first; otherwise last
    groups: int = 1
    taken: list[tuple[int, int]] = field(default_factory=list)  # by choice: the number, and how many there were

    def __post_init__(self) -> None:
        ranks = sorted([*self.dying, *self.survivors])
        self.shards = {rank: Survivor(rank, ranks, self.groups) for rank in ranks if self.is_shard(rank)}
        self.channels: dict[tuple[int, int], deque[Any]] = {}
        self.lost, self.told, self.asked = set[int](), deque[int](), 0  # dead ranks; losses that the master has not heard of
        self.alive = [*self.survivors, *(rank for rank in self.dying if self.is_shard(rank))]
        self.known = list(self.alive)  # to the master
        if self.early:
            self._hear_of_survivors()
        for rank in self.dying:
            for receiver, message in self.sent[rank]:
                if receiver in self.shards and receiver != rank:
                    self.channels.setdefault((rank, receiver), deque()).append(message)

    def is_shard(self, rank: int) -> bool:
        """Return True unless the rank is the first one in `dying`, which is dead from the beginning."""
        return rank != self.dying[0]

    def _hear_of_survivors(self) -> None:
        for shard in self.shards.values():
            for sender in self.survivors:
                for group in range(self.groups):
                    shard.take(("gradient", sender, group))

    @property
    def state(self) -> Any:
        shards = tuple((rank, shard.state) for rank, shard in sorted(self.shards.items()) if rank in self.alive)
        channels = tuple((way, tuple(map(repr, queue))) for way, queue in sorted(self.channels.items()) if queue)
        told = sorted(self.answers.items()) if self.asked else []
        return shards, channels, tuple(sorted(self.lost)), tuple(self.told), tuple(self.known), self.asked, repr(told)

    def happen(self) -> bool:
        """Make one of the possible events happen, and return False if no event is possible.

        Two simplifications lose no case. An answer reaches the master at once, since an answer that is lost with its sender
        is equivalent to one that was never sent. A message that its receiver drops is dropped at once.
        """
        self._drop()
        events: list[Any] = [way for way, queue in sorted(self.channels.items()) if queue]
        events += [rank for rank in self.dying[1:] if rank in self.alive]
        if not events:
            return False
        if len(self.taken) >= len(self.choices):
            if self.state in self.seen:
                raise SeenError
            self.seen.add(self.state)
        number = self.choices[len(self.taken)] if len(self.taken) < len(self.choices) else 0
        self.taken.append((number, len(events)))
        event = events[number]
        if isinstance(event, int):
            self.alive.remove(event)
            self.lost.add(event)
            self.told.append(event)
        else:
            sender, receiver = event
            answer = self.shards[receiver].take(self.channels[sender, receiver].popleft())
            if answer is not None:
                self.answers[receiver] = answer
        return True

    def _drop(self) -> None:
        for (sender, receiver), queue in self.channels.items():
            if receiver not in self.alive or sender in self.shards[receiver].gone:
                queue.clear()

    # the calls of the master

    @property
    def ranks(self) -> list[int]:
        return list(self.known)

    def order(self, name: str, to: Sequence[int] | None = None, **arguments: Any) -> int:
        for rank in self.known if to is None else to:
            self.channels.setdefault((MASTER, rank), deque()).append((name, arguments))
        return 0

    def pass_on(self, frame: Bytes, to: Sequence[int]) -> None:
        for rank in to:
            self.channels.setdefault((MASTER, rank), deque()).append(("passed on", frame.tobytes()))

    def ask(self, name: str, seconds: float, *, to: Sequence[int] | None = None, **arguments: Any) -> dict[int, Any]:
        ranks = list(self.known if to is None else to)
        self.order(name, ranks, **arguments)
        self.answers: dict[int, Any] = {}
        self.asked += 1
        while set(ranks) - self.lost - self.answers.keys():
            assert self.happen(), "an answer does not come"
        return self.answers

    def hand(self, rank: int, body: bytes) -> Frame:
        return Frame(Kind.ANSWER, Flag.NONE, rank, 0, 0, 0, np.frombuffer(body, np.uint8))

    def results(self, name: str, seconds: float, **arguments: Any) -> dict[int, Any]:
        return self.ask(name, seconds, **arguments)

    def run(self) -> None:
        """Withdraw the first dying rank, then each of the others after its death."""
        self.told.append(self.dying[0])
        left = len(self.dying)
        while left:
            while not self.told:
                assert self.happen(), "a death does not come"
            rank = self.told.popleft()
            self.known = [other for other in self.known if other != rank]
            withdraw_from_all(_Handed(self), rank, JOB, 1.0, is_open=True)
            left -= 1
        while self.happen():
            pass
        if not self.early:
            self._hear_of_survivors()


class _Handed:
    """The master's calls in a world. Answers to the order "hand" become frames."""

    def __init__(self, world: World) -> None:
        self.world, self.order, self.pass_on, self.results = world, world.order, world.pass_on, world.results

    @property
    def ranks(self) -> list[int]:
        return self.world.ranks

    def ask(self, name: str, seconds: float, *, to: Sequence[int] | None = None, **arguments: Any) -> dict[int, Frame]:
        found = self.world.ask(name, seconds, to=to, **arguments)
        return {rank: self.world.hand(rank, body) for rank, body in found.items()}


def explored(**world: Any) -> int:
    """Run a world in all orders of its events, check every end, and return the number of ends."""
    seen, ends, choices = set[Any](), 0, list[int]()
    while True:
        found = World(choices, seen, **world)
        try:
            found.run()
        except SeenError:
            pass
        else:
            ends += 1
            check(found)
        while found.taken and found.taken[-1][0] + 1 == found.taken[-1][1]:
            found.taken.pop()
        if not found.taken:
            return ends
        number, _ = found.taken.pop()
        choices = [*(each for each, _ in found.taken), number + 1]


def check(world: World) -> None:
    """Check that all survivors have closed all groups with the same gradients in rank order, among them those of all
    survivors.
    """
    sums = {tuple(map(tuple, world.shards[rank].added)) for rank in world.survivors}
    assert len(sums) == 1
    for added in sums.pop():
        assert list(added) == sorted(set(added))
        assert set(world.survivors) <= set(added)
    assert all(len(world.shards[rank].closed) == world.groups for rank in world.survivors)


def sends(rank: int, receivers: Sequence[int], groups: int, *, skips: int | None = None) -> list[tuple[int, Any]]:
    """Return all messages that `rank` sends in a round: the gradients of the groups in order, each to all receivers. With
    `skips`, only groups before this one are sent, and then the announcement that the rank skips the step.
    """
    until = groups if skips is None else skips
    found: list[tuple[int, Any]] = [(to, ("gradient", rank, group)) for group in range(until) for to in receivers]
    return found + ([] if skips is None else [(to, ("skip", rank)) for to in receivers])


@pytest.mark.sweep
@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("skips", [None, 0, 1])
def test_a_worker_that_dies_anywhere_in_a_round_counts_at_all_survivors_or_at_none(early: bool, skips: int | None) -> None:
    everything = sends(2, [1, 3, 4], 2, skips=skips)
    for number in range(len(everything) + 1):
        assert explored(
            dying=[2], survivors=[1, 3, 4], sent={2: everything[:number]}, early=early, groups=2
        )  # fmt: skip


@pytest.mark.parametrize("early", [True, False])
def test_a_second_death_in_the_middle_of_the_withdrawal_parts_no_survivors(early: bool) -> None:
    first, second = sends(3, [1, 2, 4], 1), sends(2, [1, 3, 4], 1)
    for number in range(len(first) + 1):
        for other in (0, 2):
            assert explored(dying=[3, 2], survivors=[1, 4], sent={3: first[:number], 2: second[:other]}, early=early)


def test_three_deaths_one_after_another_leave_the_last_two_with_the_same_sum() -> None:
    """Check that ranks 2 and 5 end with the same sum if rank 3's gradient has reached only rank 1, and rank 1's only rank 2,
    and ranks 3, 1 and 4 die.
    """
    sent = {3: sends(3, [1], 1), 1: sends(1, [2], 1), 4: []}
    assert explored(dying=[3, 1, 4], survivors=[2, 5], sent=sent, early=True)
