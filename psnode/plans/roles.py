"""Roles of a job's ranks: the master, workers, spares and servers."""

from __future__ import annotations

from dataclasses import dataclass

MASTER = 0  # the rank that decides, in every topology, which ranks take part


@dataclass(frozen=True, slots=True)
class Layout:
    """Ranks of a job by role: the master, then `workers`, then `spares`, which get all versions and wait to replace a worker.

    The last ranks are `servers`, which update weights as the master does and compute no gradients. Since they come last, the
    ranks of workers do not depend on the number of servers. This matters because random numbers and the names of checkpoint
    files depend on the ranks of workers.
    """

    workers: int
    spares: int = 0
    servers: int = 0

    @classmethod
    def of(cls, size: int, spares: int, servers: int = 0) -> Layout:
        """Return the layout of a job of `size` ranks. If there are too few ranks, the layout has no workers."""
        servers = min(servers, size - 1)
        return cls(max(0, size - 1 - spares - servers), min(spares, size - 1 - servers), servers)

    @property
    def computing(self) -> range:
        """The ranks of workers."""
        return range(MASTER + 1, MASTER + 1 + self.workers)

    @property
    def first(self) -> int:
        """The worker that inspects the model and the data for all workers."""
        return self.computing.start

    @property
    def waiting(self) -> range:
        """The ranks of spares."""
        return range(self.computing.stop, self.computing.stop + self.spares)

    @property
    def serving(self) -> range:
        """The ranks of servers, which exclude the master."""
        return range(self.waiting.stop, self.waiting.stop + self.servers)

    @property
    def others(self) -> range:
        """All ranks except the master."""
        return range(self.computing.start, self.serving.stop)

    @property
    def readers(self) -> range:
        """The ranks that hold the published weights."""
        return range(self.computing.start, self.waiting.stop)

    def place(self, rank: int) -> int:
        """Return the number, counted from 0, of the share of examples with which `rank` begins.

        A spare gets another share when it takes a worker's place.
        """
        return (rank - self.computing.start) % self.workers
