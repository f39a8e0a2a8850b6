"""The load of the stages that a group passes in a step, as numbers of frames and of roots, from the routes of a job."""

from __future__ import annotations

from dataclasses import dataclass

from psnode.exchange.routes.topologies import shares_of
from psnode.jobs.planning.routing.routed_groups import RoutedGroups


@dataclass(frozen=True)
class StageLoads:
    """The numbers that the model of a step (psnode.jobs.planning.search.step_clocks) has of the routes of a job.

    * gradients: the frames with gradients that a root decodes for a group, its own included
    * inward, outward: the frames with gradients to a root from other ranks, and those with weights from it to other ranks
    * roots: the number of roots that work on different groups at the same time: all weights divided by those of the busiest root
    * copies: the number of roots that update the same group
    """

    gradients: int
    inward: int
    outward: int
    roots: float = 1.0
    copies: int = 1

    @classmethod
    def of_one_root(cls, workers: int) -> StageLoads:
        """Return the loads of a job of `workers` workers in which the master is the only root."""
        return cls(workers, workers, workers)

    @classmethod
    def of(cls, groups: RoutedGroups, topology: str) -> StageLoads:
        """Return the loads of a job with these groups under a topology, if groups of all sizes divide evenly among the roots.

        The numbers of frames are those of the group with the most.
        """
        layout, routes = groups.layout, groups.routes
        sent = [sum(route.down(rank) == root != rank for rank in layout.readers) for route in routes for root in route.roots]
        received = [sum(rank != root for rank in layout.computing) for route in routes for root in route.roots]
        return cls(
            layout.workers, max(received), max(sent), 1 / max(shares_of(topology, layout.workers)),
            max(len(route.roots) for route in routes),
        )  # fmt: skip
