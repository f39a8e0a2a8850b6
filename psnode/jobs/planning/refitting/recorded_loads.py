"""Conversion of costs by group to the figures that a run records, which depend on the routes of the groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from psnode.exchange.routes.route import Route
from psnode.jobs.planning.routing.link_loads import frames_of
from psnode.plans.roles import Layout

# the costs of a group, by the figure of StepFigures in which they are summed
COSTS: Mapping[str, str] = {"encode": "encode", "decode": "decode", "update": "update", "sent": "up", "received": "down"}


class RecordedLoads:
    """Sums of costs by group, as a job of `layout` whose groups travel on `routes` records them.

    A worker codes all groups. For decoding and updates, a run records the time of the rank that takes longest; each rank that
    updates weights decodes the gradients of all workers for its groups. Bytes of gradients are means over workers, and bytes
    of weights are means over the readers of weights.
    """

    def __init__(self, routes: Sequence[Route], layout: Layout) -> None:
        self._workers, self._readers = layout.workers, max(len(layout.readers), 1)
        self._roots: dict[int, list[int]] = {}
        for group, route in enumerate(routes):
            for root in route.roots:
                self._roots.setdefault(root, []).append(group)
        frames = [frame for frame in frames_of(routes, layout.computing) if frame.source != frame.target]
        self._up = Counter(frame.group for frame in frames if frame.is_gradient)
        self._down = Counter(frame.group for frame in frames if not frame.is_gradient)

    def figure(self, name: str, costs: Sequence[float]) -> float:
        """Return the figure `name`, a key of COSTS, as a run would record it. `costs`: the costs of its groups."""
        match name:
            case "encode":
                return float(sum(costs))
            case "decode":
                return self._workers * self._longest(costs)
            case "update":
                return self._longest(costs)
            case "sent":
                return sum(count * costs[group] for group, count in self._up.items()) / self._workers
        return sum(count * costs[group] for group, count in self._down.items()) / self._readers

    def _longest(self, costs: Sequence[float]) -> float:
        return float(max((sum(costs[group] for group in groups) for groups in self._roots.values()), default=0.0))
