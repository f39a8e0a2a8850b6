"""Decision about the gradients of a lost rank of which only some of the shards that add the same gradients have a part.

The lost rank may have sent its gradient of a group to some shards and not to others, and those may have closed the group with it.
So every shard is asked which gradients of this rank it has, and takes no more of them from then on. A gradient that any shard has
counts at all shards. This is the flush of virtual synchrony (Birman and Joseph, "Exploiting virtual synchrony in distributed
systems", SOSP 1987): before the members change, all remaining members have received the same messages of the old ones.
"""

from __future__ import annotations

from collections.abc import Iterable


class Flush:
    """Flush of the gradients of one lost rank in the open round. `asked`: the ranks whose shards are asked for them.

    First every shard answers with the groups of which it has the gradient (`hear`). Then the caller fetches a frame of every
    group in `to_fetch` (`fetched`), and sends it to the shards in `lacking`. A shard may be lost on the way (`lose`). Its answer
    does not count any more, so `to_fetch` may name other ranks, and fewer groups. A frame that was fetched counts in any case.
    """

    def __init__(self, asked: Iterable[int]) -> None:
        self._has: dict[int, frozenset[int] | None] = dict.fromkeys(sorted(asked))
        self._fetched: set[int] = set()

    @property
    def awaited(self) -> list[int]:
        """Return the ranks that have not answered, ascending."""
        return [rank for rank, groups in self._has.items() if groups is None]

    def hear(self, rank: int, groups: Iterable[int]) -> None:
        """Take the answer of `rank`: the groups of which it has the gradient, also those that it has closed."""
        if rank in self._has:
            self._has[rank] = frozenset(groups)

    def fetched(self, group: int) -> None:
        """Note that the caller has the frame of `group` in hand."""
        self._fetched.add(group)

    def lose(self, rank: int) -> None:
        """Do without the shard of `rank`."""
        self._has.pop(rank, None)

    @property
    def counted(self) -> list[int]:
        """Return the groups whose gradient counts, ascending."""
        return sorted(self._fetched.union(*(groups for groups in self._has.values() if groups is not None)))

    def lacking(self, group: int) -> list[int]:
        """Return the ranks that have answered without `group`, ascending."""
        return [rank for rank, groups in self._has.items() if groups is not None and group not in groups]

    @property
    def to_fetch(self) -> dict[int, list[int]]:
        """Return by rank the groups whose frames are to be fetched from it: those that some other shard lacks.

        A frame is fetched from the lowest rank that has it.
        """
        found: dict[int, list[int]] = {}
        for group in self.counted:
            if group not in self._fetched and self.lacking(group):
                holder = next(rank for rank, groups in self._has.items() if groups is not None and group in groups)
                found.setdefault(holder, []).append(group)
        return found
