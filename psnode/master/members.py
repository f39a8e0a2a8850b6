"""The members of a job: workers who count, spares, and workers who were suspended and may return."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from psnode.transport.clock import Clock

STRIKES = 3  # frames in a row that cannot be used


@dataclass
class _Absence:
    """`taken[g]`: the last step whose gradient of group g was taken; `step`: the last that the worker may have sent."""

    taken: Mapping[int, int]
    step: int
    heard: bool = False


class Members:
    """The workers of a job. `live`: those whose gradients count and who are waited for; `spares`: those who wait to be."""

    def __init__(self, workers: Iterable[int], clock: Clock, spares: Iterable[int] = ()) -> None:
        self.live = frozenset(workers)
        self.spares = list(spares)
        self._most = len(self.live)
        self._clock = clock
        self._since = dict.fromkeys([*self.live, *self.spares], clock.now())
        self._strikes: dict[int, int] = {}
        self._aside: dict[int, _Absence] = {}

    def hear(self, rank: int, gradient_of: int = 0) -> None:
        """Something came from `rank`: part of the gradient of a step, if that is given."""
        self._since[rank] = self._clock.now()
        if (absence := self._aside.get(rank)) is not None:
            absence.heard = True
            absence.step = max(absence.step, gradient_of)

    def ask(self, ranks: Iterable[int]) -> None:
        """`ranks` had nothing to say, and have from now on: they kept silent because they were not asked."""
        self._since.update(dict.fromkeys(ranks, self._clock.now()))

    def silent_for(self, rank: int) -> float:
        """Seconds since `rank` was heard or asked."""
        return self._clock.now() - self._since[rank]

    def strike(self, rank: int) -> bool:
        """`rank` sent a frame that cannot be used; True if it did so STRIKES times in a row."""
        self._strikes[rank] = self._strikes.get(rank, 0) + 1
        return self._strikes[rank] >= STRIKES

    def forgive(self, rank: int) -> None:
        """Note that a gradient of `rank` was used."""
        self._strikes.pop(rank, None)

    def remove(self, rank: int) -> bool:
        """Count `rank` no more; False if it was not counted."""
        if rank not in self.live:
            return False
        self.live -= {rank}
        return True

    def suspend(self, rank: int, taken: Mapping[int, int], step: int) -> None:
        """Note that `rank` may return, its steps taken so far by group, and that it may have sent the gradient of `step`."""
        self._aside[rank] = _Absence(taken, step)

    def is_suspended(self, rank: int) -> bool:
        """True if `rank` may return."""
        return rank in self._aside

    def forget(self, rank: int) -> bool:
        """`rank` will not return, and is no spare; False if it was neither suspended nor a spare."""
        if rank in self.spares:
            self.spares.remove(rank)
            return True
        return self._aside.pop(rank, None) is not None

    def readmit(self) -> dict[int, tuple[int, list[int]]]:
        """Those who were suspended and heard since: each with its last step, and the groups not taken of that.

        They count again, but for those whose places have been taken: these are spares.
        """
        found = {}
        for rank in sorted(rank for rank, absence in self._aside.items() if absence.heard):
            absence = self._aside.pop(rank)
            found[rank] = absence.step, [group for group, last in absence.taken.items() if last < absence.step]
        back = list(found)[: max(0, self._most - len(self.live))]
        self.live |= set(back)
        self.spares += [rank for rank in found if rank not in back]
        return found

    def promote(self, behind: Collection[int] = ()) -> list[int]:
        """Count as many spares as places are empty: these. None of those who are `behind`."""
        promoted = [rank for rank in self.spares if rank not in behind][: self._most - len(self.live)]
        self.spares = [rank for rank in self.spares if rank not in promoted]
        self.live |= set(promoted)
        return promoted
