"""Groups that several shards have: all of them have to close a group with the same gradients."""

from __future__ import annotations

from collections.abc import Sequence

from psnode.errors import DivergedError
from psnode.exchange.routes.route import Route
from psnode.exchange.shard.shard_events import GroupClosed


class CopiedGroups:
    """Groups of `routes`, each of which is closed when all roots of its route have closed it.

    speakers: the lowest root of every group, whose other events and whose state count for all; ascending.
    """

    def __init__(self, routes: Sequence[Route]) -> None:
        self._copies = [len(route.roots) for route in routes]
        self._closed: dict[int, list[GroupClosed]] = {}
        self.speakers = sorted({route.roots[0] for route in routes})

    @property
    def exist(self) -> bool:
        """True if any group has several roots."""
        return max(self._copies) > 1

    def open(self) -> None:
        """Note that all groups are open again, everywhere."""
        self._closed = {}

    def is_open(self, group: int) -> bool:
        """Return True if no shard has closed `group`."""
        return group not in self._closed

    def close(self, event: GroupClosed, rank: int) -> GroupClosed | None:
        """Note that the shard of `rank` has closed a group. Return the event for all shards once the last one has closed it.

        Raises DivergedError if another shard has added other gradients.
        """
        found = self._closed.setdefault(event.group, [])
        if found and (event.added, event.clipped) != (found[0].added, found[0].clipped):
            raise DivergedError(
                f"rank {rank} has added other gradients to group {event.group} of version {event.version} than others: its "
                "memory or a message was corrupted; go on with --resume"
            )
        found.append(event)
        if len(found) < self._copies[event.group]:
            return None
        return event._replace(nbytes=sum(each.nbytes for each in found))
