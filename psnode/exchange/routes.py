"""Routes of groups: gradients to a root, and weights from the root to every reader.

A topology is a function from the ranks and the plan to routes; only this module refers to topologies by name. A sender is given
the rank to which a group's gradient goes, a receiver the rank from which its weights come, and a shard the routes of which its
rank is the root.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from psnode.plans.groups import Plan
from psnode.plans.roles import MASTER, Layout


@dataclass(frozen=True, slots=True)
class Route:
    """Route of one group. `root`: the rank that completes the sum of its gradients; `readers`: the ranks that get its weights."""

    root: int
    readers: Sequence[int]

    def up(self, rank: int) -> int:
        """Return the rank to which `rank` sends its gradient."""
        return self.root

    def down(self, rank: int) -> int:
        """Return the rank from which `rank` gets the weights."""
        return self.root

    def heirs(self, rank: int) -> tuple[int, ...]:
        """Return the ranks to which `rank` sends the weights."""
        return tuple(self.readers) if rank == self.root else ()


def star(layout: Layout, plan: Plan) -> tuple[Route, ...]:
    """Return the routes of a star, by group: every worker sends to the master, and the master sends to every reader."""
    return tuple(Route(MASTER, layout.readers) for _ in plan.groups)


def routes_of(layout: Layout, plan: Plan) -> tuple[Route, ...]:
    """Return the routes of a job, by group. Every rank computes the same routes."""
    return star(layout, plan)
