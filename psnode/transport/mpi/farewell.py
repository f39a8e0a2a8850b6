"""Agreement of all ranks to leave together. Without this agreement, MPI_Finalize hangs if some rank never calls it.

Every rank sends a farewell to rank 0 when it has closed its transport. When all ranks have closed, rank 0 sends a farewell to
all ranks. A rank that gets no farewell from rank 0 in time leaves without MPI_Finalize.
"""

from __future__ import annotations


class Farewell:
    """The state of one rank in the agreement to leave. The caller sends farewells to the ranks that `due` returns."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._heard: set[int] = set()
        self._said = False

    def hear(self, source: int) -> None:
        """Record the farewell of rank `source`."""
        self._heard.add(source)

    def due(self, alive: frozenset[int]) -> frozenset[int]:
        """Return the ranks to which this rank, which has closed its transport, must send a farewell now.

        Each rank is returned only once. `alive`: the ranks that are not lost.
        """
        if self._said or (self._rank == 0 and not self._all_heard(alive)):
            return frozenset()
        self._said = True
        return (alive if self._rank == 0 else frozenset({0})) - {self._rank}

    def agreed(self, alive: frozenset[int]) -> bool:
        """Return True if all ranks have agreed to leave, or if rank 0 is lost.

        On rank 0, the farewells to the other ranks may still be undelivered when the result is True.
        """
        return self._said and self._all_heard(alive)

    def _all_heard(self, alive: frozenset[int]) -> bool:
        return (alive if self._rank == 0 else alive & {0}) - {self._rank} <= self._heard
