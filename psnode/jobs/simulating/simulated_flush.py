"""The flush after the loss of a worker in virtual time, if all workers update all weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from psnode.jobs.simulating.message_paths import MessagePaths
from psnode.jobs.simulating.simulated_shard import SimulatedShard


@dataclass
class _Fetch:
    """A gradient of a lost worker on its way from the shard of `holder` to the master, for the shards of `lacking`."""

    holder: int
    lacking: list[int]


class SimulatedFlush:
    """Agreement of all shards on the gradients of lost workers in the open round, as in psnode.exchange.shard.remote.flush.

    A gradient that any shard has counts at all shards: a holder sends it to the master, which sends it to the shards that lack
    it. Then all shards go on without the lost worker. Questions and answers take no time, but frames with gradients do.

    `shards`: by rank, without those of lost workers. `sizes`: by group, the bytes of a gradient. `count(version, nbytes)` counts
    the bytes of frames.
    """

    def __init__(
        self,
        shards: Mapping[int, SimulatedShard],
        paths: MessagePaths,
        sizes: Sequence[int],
        count: Callable[[int, int], None],
    ) -> None:
        self._shards, self._paths, self._sizes, self._count = shards, paths, sizes, count
        self._fetches: dict[tuple[int, int, int], _Fetch] = {}  # by lost rank, version and group

    def begin(self, rank: int, version: int) -> None:
        """Begin the flush after the loss of `rank` in the round of `version`.

        Gradients of other lost workers that were fetched from the shard of `rank` are fetched from another shard.
        """
        lacking: dict[int, list[int]] = {}
        for root, shard in self._shards.items():
            for group in shard.lacks(rank, version):
                lacking.setdefault(group, []).append(root)
        for group, roots in lacking.items():
            self._fetch((rank, version, group), roots)
        for key, fetch in list(self._fetches.items()):
            if fetch.holder == rank:
                del self._fetches[key]
                self._fetch(key, fetch.lacking)
                self._go_on(key[0])
        self._go_on(rank)

    def _fetch(self, key: tuple[int, int, int], lacking: Sequence[int]) -> None:
        """Fetch a gradient for the shards that lack it, if another shard has it. Prefer a shard that does not stand still."""
        lacking = [root for root in lacking if root in self._shards]
        holders = [root for root in self._shards if root not in lacking]
        holder = min(holders, key=lambda root: self._shards[root].stands_still(0.0), default=None)
        if holder is not None and lacking:
            _, version, group = key
            self._fetches[key] = _Fetch(holder, lacking)
            self._count(version, self._paths.up(holder, self._sizes[group], self._pass_on, key))

    def _pass_on(self, key: tuple[int, int, int]) -> None:
        """Send a gradient that has come to the master to the shards that lack it."""
        rank, version, group = key
        fetch = self._fetches.pop(key, None)
        for root in fetch.lacking if fetch is not None else ():
            if root in self._shards:
                take = self._shards[root].take_of_lost
                self._count(version, self._paths.down(root, self._sizes[group], take, rank, group, version))
        self._go_on(rank)

    def _go_on(self, rank: int) -> None:
        """Tell all shards to go on without `rank`, if no gradient of `rank` is fetched any more."""
        if any(lost == rank for lost, _, _ in self._fetches):
            return
        for root, shard in self._shards.items():
            self._paths.tell(root, shard.withdraw, rank)
