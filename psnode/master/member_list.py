"""The members of a job: live workers, spares, and suspended workers, which may return."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from psnode.transport.clock import Clock

STRIKES = 3  # consecutive unusable frames after which a worker is dropped


@dataclass
class _Absence:
    """The facts about a suspended worker.

    `taken[g]`: the worker's last step whose gradient of group g was used. `step`: the last step for which the worker may
    have sent a gradient. `heard`: True if a frame has come from the worker since the suspension.
    """

    taken: Mapping[int, int]
    step: int
    heard: bool = False


class Members:
    """The workers of a job.

    `live`: workers whose gradients count and are awaited. `spares`: ranks that wait for an empty place among the live workers.
    `places`: the number of workers at the start, which is the maximum number of live workers.
    """

    def __init__(self, workers: Iterable[int], clock: Clock, spares: Iterable[int] = ()) -> None:
        self.live = frozenset(workers)
        self.spares = list(spares)
        self.places = len(self.live)
        self._clock = clock
        self._since = dict.fromkeys([*self.live, *self.spares], clock.now())
        self._strikes: dict[int, int] = {}
        self._aside: dict[int, _Absence] = {}

    def hear(self, rank: int, gradient_of: int = 0) -> None:
        """Record that a frame came from `rank`. `gradient_of`: the step to which the frame belongs, or 0."""
        self._since[rank] = self._clock.now()
        if (absence := self._aside.get(rank)) is not None:
            absence.heard = True
            absence.step = max(absence.step, gradient_of)

    def restart_silence(self, ranks: Iterable[int]) -> None:
        """Measure the silence of `ranks` from now on.

        Before this call these ranks had nothing to send, so their silence until now does not count.
        """
        self._since.update(dict.fromkeys(ranks, self._clock.now()))

    def silent_for(self, rank: int) -> float:
        """Return the seconds since a frame last came from `rank`, or since its silence was last restarted."""
        return self._clock.now() - self._since[rank]

    def strike(self, rank: int) -> bool:
        """Count an unusable frame of `rank`. Return True if it is at least the STRIKES-th unusable frame in a row."""
        self._strikes[rank] = self._strikes.get(rank, 0) + 1
        return self._strikes[rank] >= STRIKES

    def forgive(self, rank: int) -> None:
        """Reset the count of unusable frames of `rank`, after one of its gradients was used."""
        self._strikes.pop(rank, None)

    def remove(self, rank: int) -> bool:
        """Remove `rank` from the live workers. Return False if it was not live."""
        if rank not in self.live:
            return False
        self.live -= {rank}
        return True

    def suspend(self, rank: int, taken: Mapping[int, int], step: int) -> None:
        """Add `rank` to the suspended workers. `taken` and `step`: see _Absence."""
        self._aside[rank] = _Absence(taken, step)

    def is_suspended(self, rank: int) -> bool:
        """Return True if `rank` is suspended, so that it may return."""
        return rank in self._aside

    def forget(self, rank: int) -> bool:
        """Remove `rank` from the spares or from the suspended workers. Return False if it was in neither list."""
        if rank in self.spares:
            self.spares.remove(rank)
            return True
        return self._aside.pop(rank, None) is not None

    def readmit(self) -> dict[int, tuple[int, list[int]]]:
        """Readmit the suspended workers from which a frame has come again. They become live, or spares once all places are taken.

        Returns a pair for each of these ranks: the last step for which the worker may have sent a gradient, and the groups
        of this gradient that were not used.
        """
        found = {}
        for rank in sorted(rank for rank, absence in self._aside.items() if absence.heard):
            absence = self._aside.pop(rank)
            found[rank] = absence.step, [group for group, last in absence.taken.items() if last < absence.step]
        back = list(found)[: max(0, self.places - len(self.live))]
        self.live |= set(back)
        self.spares += [rank for rank in found if rank not in back]
        return found

    def promote(self, behind: Collection[int] = ()) -> list[int]:
        """Move spares into the empty places of live workers, except the ranks in `behind`, and return the moved ranks."""
        promoted = [rank for rank in self.spares if rank not in behind][: self.places - len(self.live)]
        self.spares = [rank for rank in self.spares if rank not in promoted]
        self.live |= set(promoted)
        return promoted
