"""The route of a group: its gradients go to a root, and its weights go from the root to every reader.

A route tells a sender the ranks to which a group's gradient goes. It tells a receiver the rank from which the group's weights
come. A shard gets all routes on which its rank is a root.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Sends(NamedTuple):
    """Ranks to which a root sends a group's weights.

    Ranks in `passed_on` forward the weights to their heirs; ranks in `used` do not.
    """

    passed_on: tuple[int, ...]
    used: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Route:
    """Route of one group. `root`: the rank that completes the sum of its gradients. `readers`: the ranks that get its weights."""

    root: int
    readers: Sequence[int]

    @property
    def roots(self) -> tuple[int, ...]:
        """The ranks that complete the sum of the group's gradients and update its weights, in ascending order."""
        return (self.root,)

    def up(self, rank: int) -> tuple[int, ...]:
        """Return the ranks to which `rank` sends its gradient of the group."""
        return self.roots

    def down(self, rank: int) -> int:
        """Return the rank from which `rank` gets the group's weights."""
        return self.root

    def heirs(self, rank: int) -> tuple[int, ...]:
        """Return the ranks to which `rank` sends the weights. A root that is a reader also sends them to itself."""
        return tuple(self.readers) if rank == self.root else ()

    def of_root(self, root: int) -> Route:
        """Return the part of the route on which the root `root` sends weights."""
        return self

    def behind(self, rank: int) -> frozenset[int]:
        """Return the readers that get weights through the reader `rank`, directly or indirectly."""
        return frozenset()

    def sends(self, readers: Collection[int]) -> Sends:
        """Return the ranks to which the root sends the weights, so that all ranks in `readers` on this route get them."""
        return Sends((), tuple(rank for rank in self.readers if rank in readers))


@dataclass(frozen=True, slots=True)
class CopiedRoute(Route):
    """Route on which every reader is a root: it completes the sum and updates the weights, only for itself.

    So no weights are sent to other ranks.
    """

    @property
    def roots(self) -> tuple[int, ...]:
        """The ranks that complete the sum of the group's gradients and update its weights, in ascending order."""
        return tuple(self.readers)

    def down(self, rank: int) -> int:
        """Return `rank`, since a rank gets its weights from itself."""
        return rank

    def heirs(self, rank: int) -> tuple[int, ...]:
        """Return the ranks to which `rank` sends the weights: itself, if it is a reader."""
        return (rank,) if rank in self.readers else ()

    def of_root(self, root: int) -> Route:
        """Return the route from the root `root` to itself."""
        return Route(root, (root,))


@dataclass(frozen=True, slots=True)
class PassedOnRoute(Route):
    """Route on which weights go down a tree: the root and every rank in the tree send them to at most `fanout` ranks of it.

    `passing`: the readers in the tree, in the order of the tree. All other readers get the weights from the root.
    """

    passing: Sequence[int]
    fanout: int

    def down(self, rank: int) -> int:
        """Return the rank from which `rank` gets the weights. In a round without some readers, it may be the root instead."""
        place = self._place(rank)
        return self.root if place is None or place < self.fanout else self.passing[place // self.fanout - 1]

    def heirs(self, rank: int) -> tuple[int, ...]:
        """Return the ranks to which `rank` sends or forwards the weights."""
        if rank == self.root:
            return (*self.passing[: self.fanout], *(rank for rank in self.readers if rank not in self.passing))
        place = self._place(rank)
        return () if place is None else tuple(self.passing[self.fanout * (place + 1) : self.fanout * (place + 2)])

    def behind(self, rank: int) -> frozenset[int]:
        """Return the readers that get weights through the reader `rank`, directly or indirectly."""
        found, ahead = set[int](), list(self.heirs(rank))
        while ahead:
            found.add(heir := ahead.pop())
            ahead += self.heirs(heir)
        return frozenset(found)

    def sends(self, readers: Collection[int]) -> Sends:
        """Return the ranks to which the root sends the weights, so that all ranks in `readers` on this route get them.

        A rank forwards weights only if it and all ranks below it in the tree are in `readers`. Otherwise the root sends the
        weights directly.
        """
        whole: dict[int, bool] = {}
        for rank in reversed(self.passing):  # in the tree's order, heirs come after their rank
            whole[rank] = rank in readers and all(whole[heir] for heir in self.heirs(rank))
        passed_on, used, ahead = list[int](), list[int](), list(self.heirs(self.root))
        while ahead:
            heirs = self.heirs(rank := ahead.pop())
            if whole.get(rank) and heirs:
                passed_on.append(rank)
            else:
                used += [rank] if rank in readers else []
                ahead += heirs
        return Sends(tuple(sorted(passed_on)), tuple(sorted(used)))

    def _place(self, rank: int) -> int | None:
        return self.passing.index(rank) if rank in self.passing else None


def have_copies(routes: Iterable[Route]) -> bool:
    """Return True if several ranks update the weights of the same group, each for itself."""
    return any(len(route.roots) > 1 for route in routes)


def need_all(routes: Sequence[Route]) -> bool:
    """Return True if readers have parts of the weights that no other rank has. The job cannot go on if one of them is lost."""
    return not have_copies(routes) and any(root in route.readers for route in routes for root in route.roots)
