"""Leaving together: MPI_Finalize hangs if some rank never calls it, so ranks agree on it beforehand, with deadlines.

Every rank informs rank 0 that it has closed; when all have, rank 0 informs all ranks. A rank that does not receive this in time
leaves without MPI_Finalize.
"""

from __future__ import annotations


class Farewell:
    """One rank's part in the agreement. It sends no messages: the caller sends to the ranks that `due` names."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._heard: set[int] = set()
        self._said = False

    def hear(self, source: int) -> None:
        """Record the farewell of rank `source`."""
        self._heard.add(source)

    def due(self, alive: frozenset[int]) -> frozenset[int]:
        """Return the ranks to say farewell to now that this rank has closed; every rank is named once."""
        if self._said or (self._rank == 0 and not self._all_heard(alive)):
            return frozenset()
        self._said = True
        return (alive if self._rank == 0 else frozenset({0})) - {self._rank}

    def agreed(self, alive: frozenset[int]) -> bool:
        """Return True when all ranks leave (rank 0's own farewells must still be delivered), or rank 0 is gone and cannot be
        asked."""
        return self._said and self._all_heard(alive)

    def _all_heard(self, alive: frozenset[int]) -> bool:
        return (alive if self._rank == 0 else alive & {0}) - {self._rank} <= self._heard
