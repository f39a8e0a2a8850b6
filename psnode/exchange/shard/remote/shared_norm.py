"""Clipping by the global norm on workers. If the groups lie in several shards, the master adds up the squares of all shards."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from psnode.codecs.arrays import Floats
from psnode.codecs.kernels.dots import inner_products
from psnode.exchange.shard.global_norm_clipping import GlobalNorm, Summed
from psnode.exchange.shard.remote.shard_messages import Squares


class ToldNorm(GlobalNorm):
    """Norm of all groups of a run, all of which this shard has. The squared norms of each version are posted by `tell`."""

    def __init__(self, bound: float, groups: int, tell: Callable[[Squares], None], *, estimated: bool) -> None:
        super().__init__(bound, groups, estimated=estimated)
        self._tell = tell

    def _note(self, found: Mapping[int, tuple[Summed, float]]) -> None:
        self._tell(squares_of(found))


class SharedNorm(GlobalNorm):
    """Norm of all groups of a run, of which this shard has `groups`.

    Once all of them are summed, their squared norms are posted by `tell`; `settle` takes the norm of all shards together.
    """

    def __init__(self, bound: float, groups: int, tell: Callable[[Squares], None], *, estimated: bool) -> None:
        super().__init__(bound, groups, estimated=estimated)
        self._tell = tell

    def offer(self, group: int, gradient: Floats, summed: Summed) -> dict[int, Summed]:
        """Take the sum of a group. Return the group itself, clipped, if the norm is estimated; otherwise no group yet."""
        square = summed.factor**2 * inner_products(gradient, gradient)[1]
        with self._lock:
            self._found[group] = summed, square
            estimate = self._estimate
            if len(self._found) == self._groups:
                self._tell(squares_of(self._found))
        return {} if estimate is None else self._clipped({group: summed}, estimate)

    def settle(self, norm: float, *, counts: bool) -> dict[int, Summed]:
        """Take the norm of all groups of the run. Return the groups that can be moved now, clipped.

        `counts`: some group of the run has a gradient, so that the norm is an estimate for the next version.
        """
        with self._lock:
            self.norm, found, self._found = norm, self._found, {}
            waited = self._estimate is None
            if self._estimated and counts:
                self._estimate = norm
        return self._clipped({index: each for index, (each, _) in found.items()}, norm) if waited else {}


def squares_of(found: Mapping[int, tuple[Summed, float]]) -> Squares:
    """Return the event that all groups of a shard are summed. `found`: their sums and squared norms, by group."""
    return Squares({index: square for index, (_, square) in found.items()}, any(each.added for each, _ in found.values()))
