"""Who takes part in the job, who was put aside, and who was heard when."""

from __future__ import annotations

from collections.abc import Iterable

from psnode.clock import Clock

STRIKES = 3


class Members:
    """The workers of a job. `live`: those whose gradients count and who are waited for."""

    def __init__(self, workers: Iterable[int], clock: Clock) -> None:
        self.live = frozenset(workers)
        self._clock = clock
        self._heard = dict.fromkeys(self.live, clock.now())
        self._strikes: dict[int, int] = {}
        self._aside: dict[int, tuple[int, list[int]]] = {}  # the step each was put aside in, and what was not used of it
        self._back: set[int] = set()  # of those, who was heard again

    def hear(self, rank: int) -> None:
        """Something came from `rank`."""
        self._heard[rank] = self._clock.now()
        if rank in self._aside:
            self._back.add(rank)

    def silent_for(self, rank: int) -> float:
        """Seconds since `rank` was heard."""
        return self._clock.now() - self._heard[rank]

    def strike(self, rank: int) -> bool:
        """`rank` sent what cannot be used; True if it did so STRIKES times in a row."""
        self._strikes[rank] = self._strikes.get(rank, 0) + 1
        return self._strikes[rank] >= STRIKES

    def forgive(self, rank: int) -> None:
        """What `rank` sent was used."""
        self._strikes.pop(rank, None)

    def remove(self, rank: int) -> bool:
        """Count `rank` no more; False if it was not counted."""
        if rank not in self.live:
            return False
        self.live -= {rank}
        return True

    def put_aside(self, rank: int, step: int) -> None:
        """Keep in mind that `rank` may return; it was about to send the gradient of `step`."""
        self._aside[rank] = (step, [])
        self._back.discard(rank)

    def forget(self, rank: int) -> bool:
        """`rank` will not return; False if nobody waited for that."""
        return self._aside.pop(rank, None) is not None

    def aside_in(self, step: int) -> list[int]:
        """Who was put aside while the round of `step` was open."""
        return [rank for rank, (last, _) in self._aside.items() if last == step]

    def not_used(self, rank: int, step: int, groups: list[int]) -> None:
        """Of the gradient of `step` that `rank` was put aside in, `groups` were not used."""
        self._aside[rank] = (step, groups)

    def let_in(self) -> list[int]:
        """Count those again who were put aside and heard since."""
        returned = sorted(self._back & self._aside.keys())
        self._back.clear()
        self.live |= set(returned)
        return returned

    def take_not_used(self, rank: int) -> tuple[int, list[int]] | None:
        """What `not_used` was told of a worker that is let in, once; None for the others."""
        return self._aside.pop(rank, None)
