"""Topologies: functions from the ranks and the plan to routes.

Only this package refers to topologies by name, beside the setting that selects one.
"""

from __future__ import annotations

from collections.abc import Sequence

from psnode.exchange.routes.route import CopiedRoute, PassedOnRoute, Route
from psnode.plans.groups import Plan
from psnode.plans.roles import MASTER, Layout
from psnode.plans.rule import DEFAULT_GROUP_BYTES

_FANOUT = 2  # ranks to which each rank of a tree passes weights on
_GROUPS_A_ROOT = 4
_LEAST_GROUP_BYTES = 1 << 16


def star(layout: Layout, plan: Plan) -> tuple[Route, ...]:
    """Return the routes of a star, by group: every worker sends to the master, and the master sends to every reader."""
    return tuple(Route(MASTER, layout.readers) for _ in plan.groups)


def star_with_tree(layout: Layout, plan: Plan) -> tuple[Route, ...]:
    """Return the routes of a star whose weights go down a tree of the workers. Spares get theirs from the master.

    So no worker depends on a spare. The silence of a spare holds up no round, so it would be found late.
    """
    return (PassedOnRoute(MASTER, layout.readers, layout.computing, _FANOUT),) * len(plan.groups)


def mesh(layout: Layout, plan: Plan) -> tuple[Route, ...]:
    """Return the routes of a mesh, by group: every worker is the root of some groups, of about equal sizes together.

    The largest group goes to the worker with the fewest coordinates so far, then the next one. This is the longest-
    processing-time rule (Graham, SIAM Journal on Applied Mathematics 1969), whose largest share is at most 4/3 of the least
    possible one.
    """
    loads = dict.fromkeys(layout.computing, 0)
    roots: dict[int, int] = {}
    for group in sorted(plan.groups, key=lambda group: (-group.size, group.index)):
        roots[group.index] = root = min(loads, key=lambda rank: (loads[rank], rank))
        loads[root] += group.size
    return tuple(Route(roots[group.index], layout.readers) for group in plan.groups)


def gather(layout: Layout, plan: Plan) -> tuple[Route, ...]:
    """Return the routes of a gather, by group: every worker sends to all workers, each of which updates all weights."""
    return tuple(CopiedRoute(layout.first, layout.computing) for _ in plan.groups)


_STAR, _STAR_WITH_TREE, _GATHER = "star", "star:down=tree", "gather"

_TOPOLOGIES = {_STAR: star, _STAR_WITH_TREE: star_with_tree, "mesh": mesh, _GATHER: gather}


def routes_of(layout: Layout, plan: Plan, topology: str = "star") -> tuple[Route, ...]:
    """Return the routes of a job under the setting `topology`, by group. Every rank computes the same routes."""
    return _TOPOLOGIES[topology](layout, plan)


def is_known(topology: object) -> bool:
    """Return True if `topology` is a value of the setting."""
    return isinstance(topology, str) and topology in _TOPOLOGIES


def is_central(topology: str) -> bool:
    """Return True if the master is the root of all groups."""
    return topology in (_STAR, _STAR_WITH_TREE)


def is_plain(topology: str) -> bool:
    """Return True if all gradients go straight to the master, and all weights come straight from it."""
    return topology == _STAR


def passed_on(routes: Sequence[Route]) -> bool:
    """Return True if workers pass weights on to others."""
    return any(isinstance(route, PassedOnRoute) for route in routes)


def sent_by_master(topology: str, workers: int) -> int:
    """Return the number of coded sets of weights that leave the master in a step of `workers` workers; 0 if it has none."""
    return min(workers, {_STAR: workers, _STAR_WITH_TREE: _FANOUT}.get(topology, 0))


def are_parts(topology: str) -> bool:
    """Return True if there are several roots, each with a part of the weights; otherwise each root updates all of them."""
    return not is_central(topology) and topology != _GATHER


def sent_in_a_step(topology: str, workers: int, up: float, down: float) -> tuple[float, float]:
    """Return the bytes of gradients and of weights that a step of the job moves between ranks.

    `up`: the bytes of one worker's coded gradient; `down`: those of the weights that one worker gets.
    """
    if is_central(topology):
        return workers * up, workers * down
    if are_parts(topology):  # of which every worker keeps its own
        return (workers - 1) * up, (workers - 1) * down
    return workers * (workers - 1) * up, 0.0


def group_bytes_of(topology: str, whole: int, workers: int) -> int:
    """Return the size of groups for a model of `whole` bytes that is dealt among `workers` in parts of about equal sizes.

    There are about four groups for each worker, none below 64 KiB and none above the usual size.
    """
    if not are_parts(topology):
        return DEFAULT_GROUP_BYTES
    return min(DEFAULT_GROUP_BYTES, max(_LEAST_GROUP_BYTES, -(-whole // (_GROUPS_A_ROOT * workers))))
