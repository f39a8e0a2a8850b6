"""Routes: the way of each group's gradients to a root, and of its weights to every reader.

A topology is a function of the ranks and the plan to routes, and this module alone knows one by its name. A sender is told the
rank that a group's gradient goes to, a receiver the rank that its weights come from, a shard the routes of which it is a root.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from psnode.plan.groups import Plan
from psnode.plan.roles import MASTER, Layout


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
