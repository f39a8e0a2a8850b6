"""Rules of consistency. They decide when a group's round closes, which gradients it accepts, and the order of addition.

Versions of a group follow one another: the open round of version v makes version v + 1. A gradient computed on version u and
applied to version v has staleness v - u. A worker computes on the newest version that it has, but only if this version is
newer than that of its last gradient.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import ClassVar, Generic, TypeVar

from psnode.config import Config

T = TypeVar("T")


class Rule(ABC):
    """Decisions about the rounds of one group.

    `k`: the number of gradients that close a round. `patient`: True if a gradient that comes after its round has closed waits
    for the next round. If False, the gradient is dropped and returns to its sender's residual.
    """

    k: int
    patient: ClassVar[bool]

    @property
    @abstractmethod
    def rounds_go_on(self) -> bool:
        """True if rounds close without the slowest workers. These workers then compute on older versions than other workers."""

    @abstractmethod
    def accepts(self, based: int, version: int) -> bool:
        """Return True if a gradient computed on version `based` may be applied to `version`."""

    @abstractmethod
    def closes(self, arrived: int, awaited: Mapping[int, int], version: int) -> bool:
        """Return True if the round of `version` closes when `arrived` gradients have come.

        `awaited`: the workers whose gradients may still come, each with the oldest version on which the worker may have
        computed its gradient.
        """


@dataclass(frozen=True)
class Synchronous(Rule):
    """The first `k` gradients computed on the newest version close the round; later gradients are dropped.

    If k is the number of workers, this is BSP (Valiant, CACM 1990). If k is smaller, the slowest workers serve as backup
    workers (Chen et al., "Revisiting distributed synchronous SGD", 2016, section 3). If fewer than k workers are left, the
    round waits for all of them.
    """

    k: int
    backups: bool = field(default=False, compare=False)  # True under kofn, even if k is the number of workers
    patient: ClassVar[bool] = False

    @property
    def rounds_go_on(self) -> bool:
        return self.backups

    def accepts(self, based: int, version: int) -> bool:
        return based == version

    def closes(self, arrived: int, awaited: Mapping[int, int], version: int) -> bool:
        return 0 < arrived >= min(self.k, arrived + len(awaited))


@dataclass(frozen=True)
class Bounded(Rule):
    """`k` gradients close the round, unless an awaited worker's gradient would then become staler than `staleness`.

    This is SSP (Ho et al., "More effective distributed ML via a stale synchronous parallel parameter server", NIPS 2013), with
    staleness counted in versions. If `staleness` is None, a round waits for no worker after `k` gradients. This is ASP (Dean
    et al., "Large scale distributed deep networks", NIPS 2012, section 4.1). No gradient of a living worker is dropped.
    """

    staleness: int | None
    k: int = 1
    patient: ClassVar[bool] = True

    @property
    def rounds_go_on(self) -> bool:
        return True

    def accepts(self, based: int, version: int) -> bool:
        return based <= version and (self.staleness is None or version - based <= self.staleness)

    def closes(self, arrived: int, awaited: Mapping[int, int], version: int) -> bool:
        if not 0 < arrived >= min(self.k, arrived + len(awaited)):
            return False
        return self.staleness is None or all(version + 1 - based <= self.staleness for based in awaited.values())


def rule_of(config: Config, workers: int) -> Rule:
    """Return the rule that the configuration names, for a job of `workers` workers."""
    match config.consistency:
        case "bsp":
            return Synchronous(workers)
        case "kofn":
            return Synchronous(config.num_aggregate or workers, backups=True)
        case "ssp":
            return Bounded(config.staleness, config.num_aggregate or 1)
        case _:
            return Bounded(None, config.num_aggregate or 1)


def waits_for_all(config: Config) -> bool:
    """Return True if every round waits for the gradients of all workers."""
    return config.consistency == "bsp"


def gradients_a_round(config: Config, workers: int) -> int:
    """Return the number of batches that the workers together compute per version if all are equally fast.

    Epochs are counted with this number.
    """
    rule = rule_of(config, workers)
    return min(workers, rule.k) if rule.patient else workers


def examples_a_round(config: Config, workers: int) -> int:
    """Return the number of examples that the workers together compute on per version if all are equally fast."""
    return gradients_a_round(config, workers) * config.batch_size * config.batches_per_step


class AdditionOrder(Generic[T]):
    """Order of additions by ascending rank, independent of the order of arrival, so that sums are reproducible.

    `expected`: the ranks from which items may come, ascending. An item is held back until all lower expected ranks have
    offered an item or are excused. With `by_rank=False` items are returned in the order of arrival. The cost of an arrival
    grows with the logarithm of the number of items held back.
    """

    def __init__(self, expected: Sequence[int], *, by_rank: bool) -> None:
        self._expected = expected if by_rank else ()
        self._passed = 0  # number of ranks, at the beginning of `expected`, that have offered an item or are excused
        self._excused: set[int] = set()
        self._held: list[tuple[int, T]] = []  # a heap by rank, with at most one item per rank
        self.arrived: set[int] = set()

    def offer(self, rank: int, item: T) -> list[T]:
        """Take the item of `rank`, which may offer only one. Return the items to add now, in order."""
        if rank in self.arrived:
            raise ValueError(f"rank {rank} offered twice")
        self.arrived.add(rank)
        if not self._held and rank < self._advance():
            return [item]
        heappush(self._held, (rank, item))
        return self._ready()

    def excuse(self, rank: int) -> list[T]:
        """Expect no further item from `rank`. Return the items that only waited for it.

        An item that `rank` has already offered is kept.
        """
        self._excused.add(rank)
        return self._ready()

    def rest(self) -> list[T]:
        """Return all items that are still held back, by ascending rank. No further item is expected."""
        self._passed = len(self._expected)
        return self._ready()

    def _ready(self) -> list[T]:
        missing, found = self._advance(), []
        while self._held and self._held[0][0] < missing:
            found.append(heappop(self._held)[1])
        return found

    def _advance(self) -> float:
        """Return the lowest expected rank whose item is still missing; infinite if there is none."""
        while self._passed < len(self._expected) and self._is_over(self._expected[self._passed]):
            self._passed += 1
        return self._expected[self._passed] if self._passed < len(self._expected) else math.inf

    def _is_over(self, rank: int) -> bool:
        return rank in self.arrived or rank in self._excused
