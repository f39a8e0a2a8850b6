"""Rounds against their rules applied by brute force: the same answers, additions and closings whatever happens in any order."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import pytest

from psnode.config import Config
from psnode.exchange.shard.consistency import rule_of
from psnode.exchange.shard.rounds import Rounds
from psnode.protocol.wire import Flag, Frame, Kind

JOBS = 100  # of each consistency and order of addition: 800 in all
EVENTS = 50  # in each job
STALENESS = 1
ODDS = {"offer": 60, "keep": 2, "restore": 1, "excuse": 4, "withdraw": 3, "admit": 4, "force": 1, "open": 1}

Told = tuple[str, object]  # ("add", frame) or ("close", group)


@dataclass
class Plain:
    """The rules as they are written down. Nothing is kept that can be found out anew from the events."""

    consistency: str
    groups: int
    enough: int  # gradients that close a round
    by_rank: bool
    told: list[Told] = field(default_factory=list)
    version: int = 0
    based: dict[int, list[int]] = field(default_factory=dict)  # of each member, by group, the least base of its next gradient
    opened: set[int] = field(default_factory=set)
    awaiting_turn: list[set[int]] = field(default_factory=list)  # by group, who is added in its turn: members when it was opened
    came: list[list[Frame]] = field(default_factory=list)  # in the round at hand
    late: list[list[Frame]] = field(default_factory=list)  # wait for the next round
    excused: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.awaiting_turn = [set() for _ in range(self.groups)]
        self.came = [[] for _ in range(self.groups)]
        self.late = [[] for _ in range(self.groups)]

    @property
    def drops_what_is_late(self) -> bool:
        return self.consistency in ("bsp", "kofn")

    def senders(self, group: int) -> list[int]:
        return [frame.sender for frame in self.came[group]]

    def awaited(self, group: int) -> list[int]:
        return [rank for rank in self.based if rank not in self.senders(group) and rank not in self.excused]

    def is_due(self, frame: Frame) -> bool:
        if frame.group >= self.groups or frame.sender not in self.based or frame.step != frame.version + 1:
            return False
        return frame.version >= self.based[frame.sender][frame.group]

    def may_be_applied(self, frame: Frame) -> bool:
        age = self.version - frame.version
        return age == 0 if self.drops_what_is_late else age >= 0 and (self.consistency == "asp" or age <= STALENESS)

    def enter(self, frame: Frame) -> None:
        here = frame.group in self.opened and frame.sender not in self.senders(frame.group)
        (self.came if here else self.late)[frame.group].append(frame)
        self.hand_out(frame.group)

    def hand_out(self, group: int) -> None:
        """Tell the additions that have become possible."""
        added = [frame for what, frame in self.told if what == "add"]
        ready = [frame for frame in self.came[group] if not any(frame is other for other in added)]
        if self.by_rank:
            missing = self.awaiting_turn[group] - set(self.senders(group))
            ready = [frame for frame in ready if not any(rank < frame.sender for rank in missing)]
            ready.sort(key=lambda frame: frame.sender)
        self.told += [("add", frame) for frame in ready]

    def judge(self, group: int) -> None:
        if group not in self.opened:
            return
        arrived, awaited = len(self.came[group]), self.awaited(group)
        if arrived == 0:
            over = not awaited and bool(self.excused)
        else:
            over = arrived >= self.enough or not awaited
            if self.consistency == "ssp":
                over = over and all(self.version + 1 - self.based[rank][group] <= STALENESS for rank in awaited)
        if over:
            self.finish(group)

    def finish(self, group: int) -> None:
        self.opened.discard(group)
        self.awaiting_turn[group] = set()
        self.hand_out(group)
        self.told.append(("close", group))

    def pass_over(self, rank: int) -> None:
        for group in sorted(self.opened):
            if rank not in self.senders(group):
                self.awaiting_turn[group].discard(rank)
            self.hand_out(group)
            self.judge(group)

    # the methods of Rounds

    def admit(self, ranks: list[int], version: int) -> None:
        for rank in ranks:
            self.based[rank] = [version] * self.groups

    def open(self, version: int) -> None:
        self.version, self.opened = version, set(range(self.groups))
        self.excused = set()
        self.came = [[] for _ in range(self.groups)]
        self.awaiting_turn = [set(self.based) for _ in range(self.groups)]
        for group in range(self.groups):
            waited, self.late[group] = self.late[group], []
            for frame in waited:
                self.enter(frame)
            if waited:
                self.judge(group)

    def offer(self, frame: Frame) -> bool:
        if not self.is_due(frame) or not self.may_be_applied(frame):
            return False
        here = frame.group in self.opened and frame.sender not in self.senders(frame.group)
        if not here and self.drops_what_is_late:
            return False
        self.based[frame.sender][frame.group] = frame.step
        self.enter(frame)
        self.judge(frame.group)
        return True

    def keep(self, frame: Frame) -> bool:
        if self.drops_what_is_late or not self.is_due(frame):
            return False
        self.based[frame.sender][frame.group] = frame.step
        self.late[frame.group].append(frame)
        return True

    def restore(self, frames: list[Frame]) -> None:
        for frame in frames:
            if frame.group < self.groups:
                self.late[frame.group].append(frame)

    def excuse(self, rank: int, step: int) -> None:
        if rank in self.based:
            self.based[rank] = [max(base, step) for base in self.based[rank]]
        if step == self.version + 1:
            self.excused.add(rank)
            self.pass_over(rank)

    def withdraw(self, rank: int) -> list[int]:
        taken = self.based.pop(rank, [0] * self.groups)
        self.pass_over(rank)
        return taken

    def force(self) -> None:
        for group in sorted(self.opened):
            self.finish(group)

    @property
    def waiting(self) -> list[Frame]:
        return [frame for late in self.late for frame in late]

    @property
    def untouched(self) -> bool:
        return len(self.opened) == self.groups and not any(self.came)

    @property
    def idle(self) -> frozenset[int]:
        return frozenset(rank for rank, bases in self.based.items() if min(bases) > self.version)

    @property
    def missing(self) -> frozenset[int]:
        return frozenset(rank for group in self.opened for rank in self.awaited(group))


def a_frame(plain: Plain, chance: random.Random, workers: int) -> Frame:
    """Mostly one that a worker would send next; sometimes of a stranger, another group, or a version that it should not have."""
    rank = chance.choice(sorted(plain.based) or [1]) if chance.random() < 0.9 else chance.randint(1, workers + 1)
    group = chance.randrange(plain.groups + (chance.random() < 0.05))
    own = plain.based.get(rank, [0])[min(group, plain.groups - 1)] if rank in plain.based else 0
    based = own if chance.random() < 0.5 else max(0, plain.version + chance.choice((-2, -1, 0, 0, 0, 0, 1)))
    step = based + 1 if chance.random() < 0.97 else based + 2
    return Frame(Kind.GRADIENT, Flag.NONE, rank, group, step, based, np.empty(0, np.uint8))


def happen(event: str, plain: Plain, rounds: Rounds, chance: random.Random, workers: int) -> None:
    """Let the same thing happen to both; the answers are the same."""
    rank, version = chance.randint(1, workers + 1), plain.version
    match event:
        case "offer":
            frame = a_frame(plain, chance, workers)
            assert rounds.offer(frame) == plain.offer(frame)
        case "keep":
            frame = a_frame(plain, chance, workers)
            assert rounds.keep(frame) == plain.keep(frame)
        case "restore":
            frames = [a_frame(plain, chance, workers) for _ in range(chance.randint(1, 3))]
            rounds.restore(frames)
            plain.restore(frames)
        case "excuse":
            step = version + chance.choice((0, 1, 1, 1, 2))
            rounds.excuse(rank, step)
            plain.excuse(rank, step)
        case "withdraw":
            assert rounds.withdraw(rank) == dict(enumerate(plain.withdraw(rank)))
        case "admit":
            ranks, since = sorted({rank, chance.randint(1, workers)}), version + chance.choice((0, 0, 1))
            rounds.admit(ranks, since)
            plain.admit(ranks, since)
        case "force":
            rounds.force()
            plain.force()
        case "open":
            rounds.open(version + (not plain.opened))
            plain.open(version + (not plain.opened))


@pytest.mark.parametrize("by_rank", [True, False])
@pytest.mark.parametrize("consistency", ["bsp", "kofn", "ssp", "asp"])
def test_rounds_do_what_the_rules_say(consistency: str, by_rank: bool) -> None:
    versions = 0
    for seed in range(JOBS):
        chance = random.Random(f"{consistency} {by_rank} {seed}")
        workers, groups = chance.randint(1, 5), chance.randint(1, 3)
        first = {"bsp": None, "kofn": chance.randint(1, workers)}.get(consistency, chance.choice((None, min(2, workers))))
        config = Config(consistency=consistency, num_aggregate=first, staleness=STALENESS)
        told: list[Told] = []
        plain = Plain(consistency, groups, first or (workers if consistency == "bsp" else 1), by_rank)
        rounds = Rounds(
            range(groups),
            rule_of(config, workers),
            by_rank=by_rank,
            add=lambda frame, told=told: told.append(("add", frame)),  # type: ignore[misc]
            close=lambda group, told=told: told.append(("close", group)),  # type: ignore[misc]
        )
        for each in (rounds, plain):
            each.admit(list(range(1, workers + 1)), 0)
            each.open(0)
        for event in chance.choices(list(ODDS), list(ODDS.values()), k=EVENTS):
            follows = not plain.opened and chance.random() < 0.7
            happen("open" if follows else event, plain, rounds, chance, workers)
            assert [(what, id(of)) for what, of in told] == [(what, id(of)) for what, of in plain.told]
            assert list(map(id, rounds.waiting)) == list(map(id, plain.waiting))
            assert (rounds.untouched, rounds.idle, rounds.missing) == (plain.untouched, plain.idle, plain.missing)
        versions += plain.version
    assert versions > JOBS  # rounds close, and others follow
