"""The master's handle of all shards of a job, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping, Sequence

from psnode.errors import TransportError
from psnode.exchange.routes.route import Route, have_copies, need_all
from psnode.exchange.shard.remote.shard_calls import ANSWER_SECONDS, cannot_go_on
from psnode.exchange.shard.rounds import Slot
from psnode.jobs.simulating.message_paths import MessagePaths
from psnode.jobs.simulating.simulated_flush import SimulatedFlush
from psnode.jobs.simulating.simulated_shard import SimulatedShard
from psnode.plans.roles import MASTER


class SimulatedHandle:
    """All shards of a job, with the part of a real handle's interface that membership uses.

    The order that opens a round takes half a round trip to shards on other ranks. If all workers update all weights, the frames
    with which the shards agree after a loss take their time, see SimulatedFlush. All other orders are rare, and take no time.

    `shards`: by rank; a shard is removed when its rank is lost, and then `leave(rank)` is called. `flush`: used if all workers
    update all weights. `send_whole(ranks, version)` sends the whole weights and returns their bytes.
    """

    def __init__(
        self,
        shards: MutableMapping[int, SimulatedShard],
        routes: Sequence[Route],
        paths: MessagePaths,
        *,
        flush: SimulatedFlush,
        leave: Callable[[int], None],
        send_whole: Callable[[Sequence[int], int], int],
    ) -> None:
        self._shards, self._routes, self._paths = shards, routes, paths
        self._flush, self._leave, self.send_whole = flush, leave, send_whole
        self.is_remote = shards.keys() != {MASTER}
        self._copied = have_copies(routes)
        self.needs_all = need_all(routes)
        self.readmits = not self._copied and not self.needs_all
        self._version = 0

    def admit(self, ranks: Iterable[int], version: int) -> None:
        """Wait for gradients of `ranks` computed on `version` or later."""
        admitted = list(ranks)
        for shard in self._shards.values():
            shard.rounds.admit(admitted, version)

    def open(self, version: int, readers: Sequence[int]) -> None:
        """Open the round of `version` on all shards. The weights that it makes go to `readers`."""
        self._version = version
        for rank, shard in self._shards.items():
            if rank == MASTER:
                shard.open(version, readers)
            else:
                self._paths.tell(rank, shard.open, version, readers)

    def excuse(self, rank: int, version: int) -> None:
        """Expect no more gradients of `rank` that are computed on `version`."""
        for shard in self._shards.values():
            shard.rounds.excuse(rank, version)

    def withdraw(self, rank: int) -> dict[Slot, int]:
        """Go on without `rank`. Raises TransportError if no other rank has its part of the weights, as in a real job."""
        if self.needs_all or self._shards.keys() <= {rank}:
            raise cannot_go_on(f"rank {rank}")
        if self._copied:
            self._shards.pop(rank)
            self._leave(rank)
            self._flush.begin(rank, self._version)
            return {}
        taken: dict[Slot, int] = {}
        for shard in self._shards.values():
            taken |= shard.rounds.withdraw(rank)
            shard.pass_no_more(rank)
        return taken

    @property
    def holders(self) -> frozenset[int]:
        """The other ranks that have shards."""
        return frozenset(self._shards) - {MASTER}

    def force(self) -> None:
        """Close all open groups with the gradients that have arrived so far, even if there are none."""
        if self.needs_all:
            raise TransportError("a round cannot be closed without the ranks that update weights")
        for shard in self._shards.values():
            shard.rounds.force()

    def behind(self, rank: int) -> frozenset[int]:
        """Return the ranks that get weights through `rank`."""
        return frozenset[int]().union(*(route.behind(rank) for route in self._routes))

    @property
    def unchanged(self) -> bool:
        """True if all groups of the open round are still open."""
        return all(not shard.is_at(self._version) or shard.rounds.all_open for shard in self._shards.values())

    @property
    def untouched(self) -> bool:
        """True if all groups of the open round are still open, and no gradient has arrived for any of them."""
        return all(not shard.is_at(self._version) or shard.rounds.untouched for shard in self._shards.values())

    @property
    def idle(self) -> frozenset[int]:
        """Ranks that send nothing more before the open round is complete and the next version is published."""
        return frozenset.intersection(*(shard.rounds.idle for shard in self._shards.values()))

    @property
    def missing(self) -> frozenset[int]:
        """Ranks whose gradients some open group still awaits, and ranks whose shards give no answer in time.

        As in a real job, a shard that stands still answers when it goes on, after all frames that have come, and it has
        ANSWER_SECONDS for that. So a shard that will go on in time names no rank here: the others name the same ones.
        """
        silent = {rank for rank, shard in self._shards.items() if shard.stands_still(ANSWER_SECONDS)}
        answers = [shard.rounds.missing for shard in self._shards.values() if not shard.stands_still(0.0)]
        return frozenset(silent).union(*answers)
