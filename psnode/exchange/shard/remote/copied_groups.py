"""Groups of which several shards have a copy. All these shards must close a group with the same gradients."""

from __future__ import annotations

from collections.abc import Sequence

from psnode.errors import DivergedError
from psnode.exchange.routes.route import Route, have_copies
from psnode.exchange.shard.shard_events import GroupClosed


class CopiedGroups:
    """State of the groups of `routes`. A group is closed when all roots of its route have closed it.

    `exist`: True if any group has several roots at the start.
    """

    def __init__(self, routes: Sequence[Route]) -> None:
        self._roots = [route.roots for route in routes]
        self.exist = have_copies(routes)
        self._closed: dict[int, dict[int, GroupClosed]] = {}  # by group and rank

    @property
    def speakers(self) -> list[int]:
        """The ranks that are the lowest root of a group, ascending.

        The state of the lowest root, and its events other than GroupClosed, count for all roots of the group.
        """
        return sorted({roots[0] for roots in self._roots})

    def open(self) -> None:
        """Record that all groups are open again, on all roots."""
        self._closed = {}

    def is_open(self, group: int) -> bool:
        """Return True if no shard has closed `group` yet."""
        return group not in self._closed

    def close(self, event: GroupClosed, rank: int) -> GroupClosed | None:
        """Record that the shard of `rank` has closed a group.

        If all shards of the group have now closed it, return one event for all these shards, otherwise None. Raises
        DivergedError if another shard has added other gradients.
        """
        found = self._closed.setdefault(event.group, {})
        first = next(iter(found.values()), event)
        if (event.added, event.clipped) != (first.added, first.clipped):
            raise DivergedError(
                f"rank {rank} has added other gradients to group {event.group} of version {event.version} than others: its "
                "memory or a message was corrupted; go on with --resume"
            )
        found[rank] = event
        return self._of_all(event.group)

    def withdraw(self, rank: int) -> list[GroupClosed]:
        """Go on without the shard of `rank`. Return one event for each group that only this shard has not closed."""
        self._roots = [tuple(root for root in roots if root != rank) for roots in self._roots]
        waited = [group for group, found in self._closed.items() if found.pop(rank, None) is None]
        return [event for group in waited if (event := self._of_all(group)) is not None]

    def _of_all(self, group: int) -> GroupClosed | None:
        """Return one event for all shards of a group if all of them have closed it, otherwise None."""
        found = self._closed[group]
        if len(found) < len(self._roots[group]):
            return None
        first, *others = found.values()
        return first._replace(nbytes=first.nbytes + sum(each.nbytes for each in others))
