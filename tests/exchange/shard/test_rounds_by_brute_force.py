"""Rounds compared with their rules applied by brute force: equal answers, additions and closings for any order of events."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from psnode.config import Config
from psnode.exchange.shard.consistency import rule_of
from psnode.exchange.shard.rounds import Origin, Rounds, Slot

JOBS = 100  # per consistency and order of addition: 800 in all
EVENTS = 50  # per job
STALENESS = 1
ODDS = {"offer": 60, "keep": 2, "restore": 1, "excuse": 4, "withdraw": 3, "admit": 4, "force": 1, "open": 1}

Told = tuple[str, object]  # ("add", gradient) or ("close", group)


@dataclass(eq=False)
class Gradient:
    """A gradient as a plain value: `rank` computed it on version `based`, for `group`."""

    rank: int
    group: int
    based: int

    @property
    def origin(self) -> Origin:
        return Origin(Slot(self.group), self.rank, self.based)


@dataclass
class Plain:
    """The rules in their simplest form. Everything that can be derived from the events is derived again each time."""

    consistency: str
    groups: int
    enough: int  # gradients that close a round
    by_rank: bool
    told: list[Told] = field(default_factory=list)
    version: int = 0
    based: dict[int, list[int]] = field(default_factory=dict)  # by member and group: the lowest base of its next gradient
    opened: set[int] = field(default_factory=set)
    awaiting_turn: list[set[int]] = field(default_factory=list)  # by group: the members when it was opened, who are added in turn
    came: list[list[Gradient]] = field(default_factory=list)  # in the current round
    late: list[list[Gradient]] = field(default_factory=list)  # these wait for the next round
    excused: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.awaiting_turn = [set() for _ in range(self.groups)]
        self.came = [[] for _ in range(self.groups)]
        self.late = [[] for _ in range(self.groups)]

    @property
    def drops_what_is_late(self) -> bool:
        return self.consistency in ("bsp", "kofn")

    def senders(self, group: int) -> list[int]:
        return [gradient.rank for gradient in self.came[group]]

    def awaited(self, group: int) -> list[int]:
        return [rank for rank in self.based if rank not in self.senders(group) and rank not in self.excused]

    def is_due(self, gradient: Gradient) -> bool:
        if gradient.group >= self.groups or gradient.rank not in self.based:
            return False
        return gradient.based >= self.based[gradient.rank][gradient.group]

    def may_be_applied(self, gradient: Gradient) -> bool:
        age = self.version - gradient.based
        return age == 0 if self.drops_what_is_late else age >= 0 and (self.consistency == "asp" or age <= STALENESS)

    def enter(self, gradient: Gradient) -> None:
        here = gradient.group in self.opened and gradient.rank not in self.senders(gradient.group)
        (self.came if here else self.late)[gradient.group].append(gradient)
        self.hand_out(gradient.group)

    def hand_out(self, group: int) -> None:
        """Report the additions to `group` that have become possible."""
        added = [gradient for what, gradient in self.told if what == "add"]
        ready = [gradient for gradient in self.came[group] if not any(gradient is other for other in added)]
        if self.by_rank:
            missing = self.awaiting_turn[group] - set(self.senders(group))
            ready = [gradient for gradient in ready if not any(rank < gradient.rank for rank in missing)]
            ready.sort(key=lambda gradient: gradient.rank)
        self.told += [("add", gradient) for gradient in ready]

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
            for gradient in waited:
                self.enter(gradient)
            if waited:
                self.judge(group)

    def offer(self, gradient: Gradient) -> bool:
        if not self.is_due(gradient) or not self.may_be_applied(gradient):
            return False
        here = gradient.group in self.opened and gradient.rank not in self.senders(gradient.group)
        if not here and self.drops_what_is_late:
            return False
        self.based[gradient.rank][gradient.group] = gradient.based + 1
        self.enter(gradient)
        self.judge(gradient.group)
        return True

    def keep(self, gradient: Gradient) -> bool:
        if self.drops_what_is_late or not self.is_due(gradient):
            return False
        self.based[gradient.rank][gradient.group] = gradient.based + 1
        self.late[gradient.group].append(gradient)
        return True

    def restore(self, gradients: list[Gradient]) -> None:
        for gradient in gradients:
            if gradient.group < self.groups:
                self.late[gradient.group].append(gradient)

    def excuse(self, rank: int, version: int) -> None:
        if rank in self.based:
            self.based[rank] = [max(base, version + 1) for base in self.based[rank]]
        if version == self.version:
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
    def waiting(self) -> list[Gradient]:
        return [gradient for late in self.late for gradient in late]

    @property
    def untouched(self) -> bool:
        return len(self.opened) == self.groups and not any(self.came)

    @property
    def idle(self) -> frozenset[int]:
        return frozenset(rank for rank, bases in self.based.items() if min(bases) > self.version)

    @property
    def missing(self) -> frozenset[int]:
        return frozenset(rank for group in self.opened for rank in self.awaited(group))


def a_gradient(plain: Plain, chance: random.Random, workers: int) -> Gradient:
    """Return a random gradient: mostly one that a worker would send next, sometimes one of an unknown rank, group or version."""
    rank = chance.choice(sorted(plain.based) or [1]) if chance.random() < 0.9 else chance.randint(1, workers + 1)
    group = chance.randrange(plain.groups + (chance.random() < 0.05))
    own = plain.based.get(rank, [0])[min(group, plain.groups - 1)] if rank in plain.based else 0
    based = own if chance.random() < 0.5 else max(0, plain.version + chance.choice((-2, -1, 0, 0, 0, 0, 1)))
    return Gradient(rank, group, based)


def happen(event: str, plain: Plain, rounds: Rounds[Gradient], chance: random.Random, workers: int) -> None:
    """Apply a random event of the given kind to the plain rules and to `rounds`, and check that the answers agree."""
    rank, version = chance.randint(1, workers + 1), plain.version
    match event:
        case "offer":
            gradient = a_gradient(plain, chance, workers)
            assert rounds.offer(gradient.origin, gradient) == plain.offer(gradient)
        case "keep":
            gradient = a_gradient(plain, chance, workers)
            assert rounds.keep(gradient.origin, gradient) == plain.keep(gradient)
        case "restore":
            gradients = [a_gradient(plain, chance, workers) for _ in range(chance.randint(1, 3))]
            rounds.restore([(gradient.origin, gradient) for gradient in gradients])
            plain.restore(gradients)
        case "excuse":
            of = version + chance.choice((-1, 0, 0, 0, 1))
            rounds.excuse(rank, of)
            plain.excuse(rank, of)
        case "withdraw":
            assert rounds.withdraw(rank) == {Slot(group): base for group, base in enumerate(plain.withdraw(rank))}
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
        rounds = Rounds[Gradient](
            [Slot(group) for group in range(groups)],
            rule_of(config, workers),
            by_rank=by_rank,
            add=lambda gradient, told=told: told.append(("add", gradient)),  # type: ignore[misc]
            close=lambda slot, told=told: told.append(("close", slot.group)),  # type: ignore[misc]
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
