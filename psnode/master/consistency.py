"""When a group's round closes, and in which order its gradients are added: pure decisions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T")
Rule = Callable[[frozenset[int], frozenset[int]], bool]


def bulk_synchronous(arrived: frozenset[int], live: frozenset[int]) -> bool:
    """BSP: a round closes when every live worker's gradient is there (Valiant, CACM 1990)."""
    return bool(arrived) and live <= arrived


RULES: dict[str, Rule] = {"bsp": bulk_synchronous}


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

    def _ready(self) -> list[T]:
        missing = min(self._expected - self.arrived, default=None) if self._by_rank else None
        return [self._held.pop(rank) for rank in sorted(self._held) if missing is None or rank < missing]
