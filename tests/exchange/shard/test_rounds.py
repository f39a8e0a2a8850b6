"""Rounds of few workers and groups under every rule: all orders of events, up to a number of events.

A worker takes the newest version, computes on this version, and sends its groups one by one; then it waits for a newer version. A
version is finished when every group has closed. The checks hold after every event.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from psnode.exchange.shard.consistency import Bounded, Rule, Synchronous
from psnode.exchange.shard.rounds import Origin, Rounds, Slot

Event = tuple[str, int, int]


def gradient(rank: int, group: int, based: int) -> tuple[Origin, Origin]:
    """Return a gradient that consists only of its origin."""
    origin = Origin(Slot(group), rank, based)
    return origin, origin


def slots(groups: int) -> list[Slot]:
    return [Slot(group) for group in range(groups)]


@dataclass
class World:
    """The `rounds` under test with their workers. An event is (kind, rank, group)."""

    workers: int
    groups: int
    rule: Rule
    version: int = 0
    dropped: int = 0
    added: list[tuple[int, int, int, int]] = field(default_factory=list)  # (rank, group, based, applied to)
    closed: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.rounds = Rounds[Origin](slots(self.groups), self.rule, by_rank=True, add=self._add, close=self._close)
        self.bases = dict.fromkeys(range(1, self.workers + 1), 0)
        self.unsent = {rank: list(range(self.groups)) for rank in self.bases}
        self.rounds.admit(self.bases, 0)
        self.rounds.open(0)

    def _add(self, origin: Origin) -> None:
        self.added.append((origin.rank, origin.slot.group, origin.version, self.version))

    def _close(self, slot: Slot) -> None:
        assert slot.group not in self.closed
        self.closed.add(slot.group)

    def events(self) -> list[Event]:
        """Return the events that can come next."""
        sends = [("send", rank, groups[0]) for rank, groups in self.unsent.items() if groups]
        takes = [("take", rank, 0) for rank, groups in self.unsent.items() if not groups and self.bases[rank] < self.version]
        return sends + takes

    def happen(self, event: Event) -> None:
        what, rank, group = event
        if what == "send":
            self.unsent[rank].remove(group)
            self.dropped += not self.rounds.offer(*gradient(rank, group, self.bases[rank]))
        elif what == "take":
            self.bases[rank], self.unsent[rank] = self.version, list(range(self.groups))
        elif what == "lose":
            del self.bases[rank], self.unsent[rank]
            self.rounds.withdraw(rank)
        else:
            self.unsent[rank] = []
            self.rounds.excuse(rank, self.bases[rank])
        while len(self.closed) == self.groups:
            self.version += 1
            self.closed.clear()
            self.rounds.open(self.version)


def histories(workers: int, groups: int, rule: Rule, length: int, extra: str = "") -> Iterator[World]:
    """Yield the world after every sequence of at most `length` events. Given `extra`, worker 1 may once be lost or skip its
    step.
    """

    def replay(events: list[Event]) -> World:
        world = World(workers, groups, rule)
        for event in events:
            world.happen(event)
        return world

    stack: list[list[Event]] = [[]]
    while stack:
        events = stack.pop()
        world = replay(events)
        while True:
            yield world
            if len(events) == length:
                break
            options = world.events()
            if extra and all(event[0] != extra for event in events) and (extra == "lose" or world.unsent[1]):
                options.append((extra, 1, 0))
            if not options:
                break
            stack.extend([*events, option] for option in options[:-1])
            events = [*events, options[-1]]
            world.happen(options[-1])  # the last branch goes on in the same world; only the others are replayed


RULES = [
    Synchronous(3),
    Synchronous(2),
    Synchronous(1),
    Bounded(0),
    Bounded(1),
    Bounded(2),
    Bounded(None),
    Bounded(1, 2),
    Bounded(None, 2),
]
SIZES = [(1, 1, 8), (2, 1, 10), (3, 1, 8), (2, 2, 10)]


def holds(world: World) -> None:
    """Check that each gradient is added at most once, never before its version, and never staler than the rule allows."""
    assert len({entry[:3] for entry in world.added}) == len(world.added)
    for rank in (1, 2, 3):
        for group in range(world.groups):
            steps = [based for who, where, based, _ in world.added if (who, where) == (rank, group)]
            assert steps == sorted(steps)
    for _, _, based, applied in world.added:
        oldest = (
            applied
            if isinstance(world.rule, Synchronous)
            else 0
            if world.rule.staleness is None
            else applied - world.rule.staleness
        )
        assert oldest <= based <= applied
    for version in range(world.version):
        for group in range(world.groups):
            ranks = [who for who, where, _, applied in world.added if (where, applied) == (group, version)]
            assert ranks == sorted(ranks)


@pytest.mark.sweep
@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize(("workers", "groups", "length"), SIZES)
def test_whatever_happens_first(rule: Rule, workers: int, groups: int, length: int) -> None:
    newest, oldest, late = 0, 0, 0
    for world in histories(workers, groups, rule, length):
        holds(world)
        assert world.events()  # no worker waits for ever
        for version in range(world.version):
            for group in range(groups):
                count = sum((where, applied) == (group, version) for _, where, _, applied in world.added)
                if isinstance(rule, Synchronous):
                    assert count == min(rule.k, workers)
                else:
                    assert count >= min(rule.k, workers)
                    assert count == workers or rule.staleness != 0
        if not isinstance(rule, Synchronous):
            assert world.dropped == 0
        newest, late = max(newest, world.version), max(late, world.dropped)
        oldest = max([oldest, *(applied - based for _, _, based, applied in world.added)])
    assert newest >= (1 if workers == 3 else 2)
    assert (late > 0) == (isinstance(rule, Synchronous) and rule.k < workers)
    if isinstance(rule, Bounded) and rule.staleness is not None and workers > rule.k:
        assert oldest == rule.staleness  # the bound is reached, so that the rule must enforce it


@pytest.mark.sweep
@pytest.mark.parametrize("extra", ["lose", "skip"])
@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize(("workers", "groups"), [(2, 1), (3, 1), (2, 2)])
def test_whenever_a_worker_is_lost_or_skips_a_step(rule: Rule, workers: int, groups: int, extra: str) -> None:
    for world in histories(workers, groups, rule, 7, extra):
        holds(world)
        assert world.events()


def test_a_lonely_worker_that_skips_is_not_waited_for() -> None:
    for rule in RULES:
        world = World(1, 2, rule)
        world.happen(("skip", 1, 0))
        assert (world.version, world.added) == (1, [])


def test_replays_and_strangers_are_not_taken() -> None:
    for rule in RULES:
        world = World(2, 1, rule)
        assert world.rounds.offer(*gradient(1, 0, 0))
        assert not world.rounds.offer(*gradient(1, 0, 0))
        assert not world.rounds.offer(*gradient(3, 0, 0))
        assert not world.rounds.offer(*gradient(2, 5, 0))
        assert not world.rounds.offer(*gradient(2, 0, 9))
        assert not world.rounds.offer(Origin(Slot(0, 1), 2, 0), gradient(2, 0, 0)[0])


def test_who_has_sent_everything_of_the_open_round_is_idle() -> None:
    rounds = Rounds[Origin](slots(2), Synchronous(2), by_rank=True, add=lambda gradient: None, close=lambda slot: None)
    rounds.admit([1, 2, 3], 0)
    rounds.open(0)
    assert rounds.idle == frozenset()
    rounds.offer(*gradient(1, 0, 0))
    assert rounds.idle == frozenset()
    rounds.offer(*gradient(1, 1, 0))
    rounds.excuse(3, 0)
    assert rounds.idle == {1, 3}


def test_who_is_withdrawn_leaves_word_of_what_was_taken() -> None:
    rounds = Rounds[Origin](slots(3), Synchronous(2), by_rank=True, add=lambda gradient: None, close=lambda slot: None)
    rounds.admit([1, 2], 6)
    rounds.open(6)
    rounds.offer(*gradient(1, 2, 6))
    assert rounds.withdraw(1) == {Slot(0): 6, Slot(1): 6, Slot(2): 7}
    assert not rounds.offer(*gradient(1, 0, 6))


@pytest.mark.parametrize("rule", [Synchronous(2), Bounded(1, 2), Bounded(None, 2)])
def test_who_was_excused_from_a_round_is_waited_for_in_the_next(rule: Rule) -> None:
    closed: list[Slot] = []
    rounds = Rounds[Origin](slots(1), rule, by_rank=True, add=lambda gradient: None, close=closed.append)
    rounds.admit([1, 2], 0)
    rounds.open(0)
    rounds.excuse(1, 0)
    assert rounds.offer(*gradient(2, 0, 0)) and closed == slots(1)
    rounds.open(1)
    assert rounds.missing == {1, 2}
    assert rounds.offer(*gradient(2, 0, 1)) and closed == slots(1) and rounds.missing == {1}
    assert rounds.offer(*gradient(1, 0, 1)) and closed == 2 * slots(1)


def test_a_round_is_untouched_until_a_gradient_of_any_group_has_come() -> None:
    rounds = Rounds[Origin](slots(2), Synchronous(2), by_rank=True, add=lambda gradient: None, close=lambda slot: None)
    assert not rounds.untouched  # no round is open
    rounds.admit([1, 2], 0)
    rounds.open(0)
    assert rounds.untouched
    rounds.withdraw(1)
    assert rounds.untouched
    rounds.offer(*gradient(2, 1, 0))
    assert not rounds.untouched
    rounds.force()
    assert not rounds.untouched


def test_the_phases_of_a_group_close_one_by_one() -> None:
    added, closed = list[str](), list[Slot]()
    first, second = Slot(0), Slot(0, 1)
    rounds = Rounds[str]([first, second], Synchronous(2), by_rank=True, add=added.append, close=closed.append)
    rounds.admit([1, 2], 4)
    rounds.open(4)
    assert rounds.offer(Origin(first, 2, 4), "p of 2") and rounds.offer(Origin(first, 1, 4), "p of 1")
    assert (added, closed) == (["p of 1", "p of 2"], [first])
    assert rounds.missing == {1, 2} and rounds.idle == frozenset()
    assert not rounds.offer(Origin(first, 1, 4), "p of 1 again")
    assert rounds.offer(Origin(second, 1, 4), "q of 1") and closed == [first]
    assert rounds.idle == {1}
    assert rounds.withdraw(2) == {first: 5, second: 4}
    assert (added, closed) == (["p of 1", "p of 2", "q of 1"], [first, second])
