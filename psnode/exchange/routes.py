"""Routes: the way of each group's gradients to a root, and of its weights to every reader.

A topology is a function of the ranks and the plan to routes, and this module alone knows one by its name. A sender is told the
rank that a group's gradient goes to, a receiver the rank that its weights come from, a shard the routes of which it is a root.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from psnode.plan.groups import Plan

MASTER = 0  # the rank that decides who takes part, in every topology


@dataclass(frozen=True, slots=True)
class Layout:
    """Ranks of a job by role: the master, then `workers`, then `spares`, which follow all versions and wait for a place."""

    workers: int
    spares: int = 0

    @classmethod
    def of(cls, size: int, spares: int) -> Layout:
        """Layout of a job of `size` ranks; of no workers if there are too few."""
        return cls(max(0, size - 1 - spares), min(spares, size - 1))

    @property
    def computing(self) -> range:
        """The ranks of workers."""
        return range(MASTER + 1, MASTER + 1 + self.workers)

    @property
    def first(self) -> int:
        """The worker that looks at the model and the data for all."""
        return self.computing.start

    @property
    def waiting(self) -> range:
        """The ranks of spares."""
        return range(self.computing.stop, self.computing.stop + self.spares)

    @property
    def readers(self) -> range:
        """The ranks that hold the published weights."""
        return range(self.computing.start, self.waiting.stop)

    def place(self, rank: int) -> int:
        """Number of the share of examples that `rank` begins with, from 0. A spare gets another with the place that it takes."""
        return (rank - self.computing.start) % self.workers


@dataclass(frozen=True, slots=True)
class Route:
    """The way of one group. `root`: the rank in which the sum of its gradients is complete; `readers`: who gets its weights."""

    root: int
    readers: Sequence[int]

    def up(self, rank: int) -> int:
        """The rank to which `rank` sends its gradient."""
        return self.root

    def down(self, rank: int) -> int:
        """The rank from which `rank` gets the weights."""
        return self.root

    def heirs(self, rank: int) -> tuple[int, ...]:
        """The ranks to which `rank` sends the weights."""
        return tuple(self.readers) if rank == self.root else ()


def star(layout: Layout, plan: Plan) -> tuple[Route, ...]:
    """By group: every worker sends to the master, and every reader hears from it."""
    return tuple(Route(MASTER, layout.readers) for _ in plan.groups)


def routes_of(layout: Layout, plan: Plan) -> tuple[Route, ...]:
    """The routes of a job, by group. Every rank makes the same ones."""
    return star(layout, plan)
