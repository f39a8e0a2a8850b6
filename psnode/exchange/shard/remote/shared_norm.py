"""Clipping by the global norm in a run with several shards. The master adds up the squared norms of the shards."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from psnode.codecs.arrays import Floats
from psnode.codecs.kernels.dots import inner_products
from psnode.exchange.shard.global_norm_clipping import GRADIENT_NORM, GlobalNorm, Summed
from psnode.exchange.shard.shard_events import Squares


class ToldNorm(GlobalNorm):
    """Norm of all groups of a run, if this shard has all of them. `tell` is called with the squared norms of each version."""

    def __init__(self, bound: float, groups: int, tell: Callable[[Squares], None], *, estimated: bool) -> None:
        super().__init__(bound, groups, estimated=estimated)
        self._tell = tell

    def _note(self, found: Mapping[int, tuple[Summed, float]]) -> None:
        self._tell(squares_of(found))


class SharedNorm(GlobalNorm):
    """Norm of all groups of a run, if this shard has only some of them. `groups`: the number of this shard's groups.

    When all groups of the shard are summed, `tell` is called with their squared norms. Later `settle` must be called with the
    norm over all shards.
    """

    def __init__(self, bound: float, groups: int, tell: Callable[[Squares], None], *, estimated: bool) -> None:
        super().__init__(bound, groups, estimated=estimated)
        self._tell = tell

    def offer(self, group: int, gradient: Floats, summed: Summed) -> dict[int, Summed]:
        """Take the sum of a group. With an estimate of the norm, return the clipped sum of this group.

        Otherwise return no sums.
        """
        square = summed.factor**2 * inner_products(gradient, gradient)[1]
        with self._lock:
            self._found[group] = summed, square
            estimate = self._estimate
            if len(self._found) == self._groups:
                self._tell(squares_of(self._found))
        return {} if estimate is None else self._clipped({group: summed}, estimate)

    def settle(self, norm: float, *, counts: bool) -> dict[int, Summed]:
        """Take the norm of all groups of the run. Return the clipped sums, by group, of the groups that waited for it.

        `counts`: True if some group of the run has a gradient, so that the norm may serve as the estimate for the next
        version.
        """
        with self._lock:
            self.norm, found, self._found = norm, self._found, {}
            waited = self._estimate is None
            if self._estimated and counts:
                self._estimate = norm
        return self._clipped({index: each for index, (each, _) in found.items()}, norm) if waited else {}


def squares_of(found: Mapping[int, tuple[Summed, float]]) -> Squares:
    """Return the event that all groups of a shard are summed. `found`: by group, its sum and its squared norm."""
    return Squares({index: square for index, (_, square) in found.items()}, any(each.added for each, _ in found.values()))


class FoundNorm(NamedTuple):
    """Norm of all groups of a run. `counts`: True if some group has a gradient, so that the norm may serve as an estimate."""

    norm: float
    counts: bool


class NormOfShards:
    """Sum of the squared norms of the shards of `ranks`, for one version after another.

    `estimates`: True if shards clip by the norm of the previous version. `norm`: L2 norm of the last mean gradient before
    clipping; None before the first version, and without --clip-grad-norm.
    """

    def __init__(self, ranks: Iterable[int], *, estimates: bool) -> None:
        self.norm: float | None = None
        self._awaited, self._estimates = set(ranks), estimates
        self._squares: dict[int, Squares] = {}  # squares of the open round, by the rank of the shard
        self._estimate: float | None = None  # the norm of the last version with a gradient

    def has(self, rank: int) -> bool:
        """Return True if the squared norms of the shard of `rank` have come in the open round."""
        return rank in self._squares

    def add(self, event: Squares, rank: int) -> FoundNorm | None:
        """Take the squared norms of the shard of `rank`. If those of all shards have come, return the norm, otherwise None."""
        self._squares[rank] = event
        return self._found()

    def withdraw(self, rank: int) -> FoundNorm | None:
        """Stop waiting for the shard of `rank`.

        If the squared norms of all other shards have come, return the norm, otherwise None.
        """
        self._awaited.discard(rank)
        self._squares.pop(rank, None)
        return self._found()

    def _found(self) -> FoundNorm | None:
        if self._squares.keys() != self._awaited:
            return None
        squares = {group: square for each in self._squares.values() for group, square in each.squares.items()}
        norm = math.sqrt(sum(squares[group] for group in sorted(squares)))
        found = FoundNorm(norm, any(each.added for each in self._squares.values()))
        if found.counts:
            self._estimate = norm
        self.norm, self._squares = norm, {}
        return found

    def facts(self) -> dict[str, float]:
        """Return, for a checkpoint's manifest, the estimate of the next version's norm, if shards clip by an estimate."""
        return {GRADIENT_NORM: self._estimate} if self._estimates and self._estimate is not None else {}

    def take_up(self, facts: Mapping[str, Any]) -> None:
        """Continue from the facts of a checkpoint."""
        self._estimate = facts.get(GRADIENT_NORM)
