"""Rules of consistency: closing of a group's round, accepted gradients, order of addition. Pure decisions.

There is one sequence of versions: the open round of version v makes version v + 1 of a group. A gradient computed on version u
and applied to version v has staleness v - u. A worker computes on the newest version it has, and only on one newer than the
last it computed on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from psnode.config import Config

T = TypeVar("T")


class Rule(ABC):
    """Decides over one group. `patient`: a gradient that comes after its round has closed waits for the next one."""

    patient: ClassVar[bool]

    @abstractmethod
    def accepts(self, based: int, version: int) -> bool:
        """True if a gradient computed on version `based` may be applied to `version`."""

    @abstractmethod
    def closes(self, arrived: int, awaited: Mapping[int, int], version: int) -> bool:
        """True if the round of `version` closes with `arrived` gradients.

        `awaited`: who may still come, each with the oldest version that its gradient can be computed on.
        """


@dataclass(frozen=True)
class Synchronous(Rule):
    """The first `k` gradients computed on the newest version close the round; later ones are dropped.

    k = the number of workers is BSP (Valiant, CACM 1990); a smaller k leaves the slowest as backup workers (Chen et al.,
    "Revisiting distributed synchronous SGD", 2016, section 3). With fewer than k workers left, all of them are waited for.
    """

    k: int
    patient: ClassVar[bool] = False

    def accepts(self, based: int, version: int) -> bool:
        return based == version

    def closes(self, arrived: int, awaited: Mapping[int, int], version: int) -> bool:
        return 0 < arrived >= min(self.k, arrived + len(awaited))


@dataclass(frozen=True)
class Bounded(Rule):
    """`k` gradients close the round, unless that would leave an awaited worker's gradient staler than `staleness`.

    SSP (Ho et al., "More effective distributed ML via a stale synchronous parallel parameter server", NIPS 2013), with
    staleness counted in versions; None never waits: ASP (Dean et al., "Large scale distributed deep networks", NIPS 2012,
    section 4.1). Nothing that a living worker sends is dropped.
    """

    staleness: int | None
    k: int = 1
    patient: ClassVar[bool] = True

    def accepts(self, based: int, version: int) -> bool:
        return based <= version and (self.staleness is None or version - based <= self.staleness)

    def closes(self, arrived: int, awaited: Mapping[int, int], version: int) -> bool:
        if not 0 < arrived >= min(self.k, arrived + len(awaited)):
            return False
        return self.staleness is None or all(version + 1 - based <= self.staleness for based in awaited.values())


def rule_of(config: Config, workers: int) -> Rule:
    """The rule that the configuration names, in a job of `workers`."""
    match config.consistency:
        case "bsp":
            return Synchronous(workers)
        case "kofn":
            return Synchronous(config.num_aggregate or workers)
        case "ssp":
            return Bounded(config.staleness, config.num_aggregate or 1)
        case _:
            return Bounded(None, config.num_aggregate or 1)


def gradients_a_round(config: Config, workers: int) -> int:
    """Number of workers' batches in a version when all are equally fast: epochs are counted by it."""
    if config.consistency in ("bsp", "kofn"):
        return workers
    return min(workers, config.num_aggregate or 1)


class AdditionOrder(Generic[T]):
    """Turns arrivals in any order into additions in ascending rank, so that sums are reproducible.

    An item waits until those of all lower expected ranks have been handed out. With `by_rank=False` items are
    handed out as they come.
    """

    def __init__(self, expected: Iterable[int], *, by_rank: bool) -> None:
        self._expected = set(expected)
        self._by_rank = by_rank
        self._held: dict[int, T] = {}
        self.arrived: frozenset[int] = frozenset()

    def offer(self, rank: int, item: T) -> list[T]:
        """Take `rank`'s item; returns the items to add now, in this order. A rank offers once."""
        if rank in self.arrived:
            raise ValueError(f"rank {rank} offered twice")
        self.arrived |= {rank}
        self._held[rank] = item
        return self._ready()

    def excuse(self, rank: int) -> list[T]:
        """`rank` is not expected any more; returns the items that waited for it alone. What it offered stays."""
        if rank not in self.arrived:
            self._expected.discard(rank)
        return self._ready()

    def rest(self) -> list[T]:
        """All items that still wait, in ascending rank: nobody else is expected."""
        self._expected &= self.arrived
        return self._ready()

    def _ready(self) -> list[T]:
        missing = min(self._expected - self.arrived, default=None) if self._by_rank else None
        return [self._held.pop(rank) for rank in sorted(self._held) if missing is None or rank < missing]
