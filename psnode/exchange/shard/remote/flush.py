"""Decision on the gradients of a lost rank that only some shards have, although all shards must add the same gradients.

The lost rank may have sent its gradient of a group only to some shards, and these may have closed the group with the gradient.
So the master asks every shard for the gradients of this rank that it has. After its answer, a shard takes no more gradients
from this rank. A gradient that any shard has then counts at all shards. This is the flush of virtual synchrony (Birman and
Joseph, "Exploiting virtual synchrony in distributed systems", SOSP 1987): before the members change, all remaining members
receive the same messages of old members.
"""

from __future__ import annotations

from collections.abc import Iterable


class Flush:
    """Flush of the gradients that one lost rank has sent in the open round. `asked`: the ranks whose shards are asked for them.

    First every shard answers with the groups of which it has the gradient (`hear`). Then the caller fetches a frame of every
    group in `to_fetch` (`fetched`), and sends it to the shards in `lacking`. If a shard is lost in the meantime (`lose`), its
    answer no longer counts: `to_fetch` may then name other ranks, and fewer groups. A frame that was already fetched counts in
    any case.
    """

    def __init__(self, asked: Iterable[int]) -> None:
        self._has: dict[int, frozenset[int] | None] = dict.fromkeys(sorted(asked))
        self._fetched: set[int] = set()

    @property
    def awaited(self) -> list[int]:
        """The ranks that have not answered, ascending."""
        return [rank for rank, groups in self._has.items() if groups is None]

    def hear(self, rank: int, groups: Iterable[int]) -> None:
        """Take the answer of `rank`: the groups of which it has the gradient, including groups that it has already closed."""
        if rank in self._has:
            self._has[rank] = frozenset(groups)

    def fetched(self, group: int) -> None:
        """Record that the caller has fetched the frame of `group`."""
        self._fetched.add(group)

    def lose(self, rank: int) -> None:
        """Go on without the shard of `rank`."""
        self._has.pop(rank, None)

    @property
    def counted(self) -> list[int]:
        """The groups for which the gradient of the lost rank counts, ascending."""
        return sorted(self._fetched.union(*(groups for groups in self._has.values() if groups is not None)))

    def lacking(self, group: int) -> list[int]:
        """Return the ranks that have answered and do not have the gradient of `group`, ascending."""
        return [rank for rank, groups in self._has.items() if groups is not None and group not in groups]

    @property
    def to_fetch(self) -> dict[int, list[int]]:
        """The groups whose frames the caller must fetch, by the rank that has the frame. Some other shard lacks these frames.

        Each frame is fetched from the lowest rank that has it.
        """
        found: dict[int, list[int]] = {}
        for group in self.counted:
            if group not in self._fetched and self.lacking(group):
                holder = next(rank for rank, groups in self._has.items() if groups is not None and group in groups)
                found.setdefault(holder, []).append(group)
        return found
