"""Topologies: functions from the ranks and the plan to routes.

Only this package, and the setting that selects a topology, refer to topologies by name.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from fractions import Fraction
from string import digits
from typing import NamedTuple

from psnode.config.train_settings import SHARDED, servers_in
from psnode.exchange.routes.route import CopiedRoute, PassedOnRoute, Route
from psnode.plans.groups import Plan
from psnode.plans.roles import MASTER, Layout
from psnode.plans.rule import DEFAULT_GROUP_BYTES, SMALL_MODEL_BYTES

_FANOUT = 2  # number of ranks to which each rank of a tree forwards weights
_MASTERS_SHARES = 2  # number of shares of the master in a mesh; a worker has one share
_GROUPS_A_ROOT = 4
_LEAST_GROUP_BYTES = 1 << 16


def star(layout: Layout, plan: Plan) -> tuple[Route, ...]:
    """Return the routes of a star, by group: every worker sends to the master, and the master sends to every reader."""
    return tuple(Route(MASTER, layout.readers) for _ in plan.groups)


def star_with_tree(layout: Layout, plan: Plan) -> tuple[Route, ...]:
    """Return the routes of a star, by group. Weights go down a tree of the workers, and the master sends them to spares.

    Spares are not in the tree, so that no worker depends on a spare. The master would notice a silent spare only late, since
    no round waits for a spare.
    """
    return (PassedOnRoute(MASTER, layout.readers, layout.computing, _FANOUT),) * len(plan.groups)


def mesh(layout: Layout, plan: Plan) -> tuple[Route, ...]:
    """Return the routes of a mesh, by group. The workers are the roots, and their groups have about the same total size."""
    return _dealt(layout, plan, dict.fromkeys(layout.computing, 1))


def mesh_with_master(layout: Layout, plan: Plan) -> tuple[Route, ...]:
    """Return the routes of a mesh, by group. The master is a root too; its groups have twice the total size of a worker's.

    The master computes no gradient. So with this share its link carries as many bytes as a worker's link, if weights take as
    many bytes as gradients. In general, let n be the number of workers, and k the number of servers on ranks without a worker.
    The load of the busiest link is least if each such server has the share 2 (n - 1) / (n^2 + k n - 2 k) of the weights, and
    each worker the share (n - k) / (n^2 + k n - 2 k) (Jiang et al., "A unified architecture for accelerating distributed DNN
    training in heterogeneous GPU/CPU clusters", OSDI 2020). For k = 1 these shares are 2 / (n + 2) and 1 / (n + 2).
    """
    return _dealt(layout, plan, {MASTER: _MASTERS_SHARES, **dict.fromkeys(layout.computing, 1)})


def _dealt(layout: Layout, plan: Plan, shares: Mapping[int, int]) -> tuple[Route, ...]:
    """Return the routes, by group, that result when groups are dealt among the ranks in `shares` in proportion to their shares.

    The groups are dealt in order of size, largest first. Each group goes to the rank that would then have the least load
    relative to its share. With equal shares this is the longest-processing-time rule (Graham, SIAM Journal on Applied
    Mathematics 1969). Its largest load is at most 4/3 of the least possible one.
    """
    heaps: dict[int, list[tuple[int, int]]] = {}  # by share, the loads and ranks; with equal shares the least load is least
    for rank, share in shares.items():
        heapq.heappush(heaps.setdefault(share, []), (0, rank))
    roots: dict[int, int] = {}
    for group in sorted(plan.groups, key=lambda group: (-group.size, group.index)):
        size = group.size
        share = min(heaps, key=lambda share: (Fraction(heaps[share][0][0] + size, share), heaps[share][0][1]))
        load, root = heaps[share][0]
        heapq.heapreplace(heaps[share], (load + size, root))
        roots[group.index] = root
    return tuple(Route(roots[group.index], layout.readers) for group in plan.groups)


def sharded(layout: Layout, plan: Plan) -> tuple[Route, ...]:
    """Return the routes, by group, of a job in which the master and every server are roots.

    The groups of each root have about the same total size.
    """
    return _dealt(layout, plan, dict.fromkeys((MASTER, *layout.serving), 1))


def gather(layout: Layout, plan: Plan) -> tuple[Route, ...]:
    """Return the routes of a gather, by group.

    Every worker sends its gradient to all workers, and each of them updates all weights.
    """
    return tuple(CopiedRoute(layout.first, layout.computing) for _ in plan.groups)


_STAR, _STAR_WITH_TREE, _GATHER = "star", "star:down=tree", "gather"
_MESH, _MESH_WITH_MASTER = "mesh", "mesh:master=auto"

_TOPOLOGIES = {
    _STAR: star,
    _STAR_WITH_TREE: star_with_tree,
    _MESH: mesh,
    _MESH_WITH_MASTER: mesh_with_master,
    SHARDED: sharded,
    _GATHER: gather,
}


def routes_of(layout: Layout, plan: Plan, topology: str = "star") -> tuple[Route, ...]:
    """Return the routes of a job under the setting `topology`, by group. Every rank computes the same routes."""
    return _TOPOLOGIES[topology.rstrip(digits)](layout, plan)


COMPARED = (_STAR, _STAR_WITH_TREE, _MESH, _MESH_WITH_MASTER, _GATHER)  # by default; all have one rank besides the workers


def is_central(topology: str) -> bool:
    """Return True if the master is the root of all groups."""
    return topology == _STAR_WITH_TREE or is_plain(topology)


def is_plain(topology: str) -> bool:
    """Return True if all gradients go directly to the master, and all weights come directly from it."""
    return topology in (_STAR, f"{SHARDED}1")


def passed_on(routes: Sequence[Route]) -> bool:
    """Return True if workers forward weights to other workers."""
    return any(isinstance(route, PassedOnRoute) for route in routes)


def sent_by_master(topology: str, workers: int) -> int:
    """Return the number of workers, out of `workers`, to which the master itself sends all coded weights in a step.

    It is 0 unless the topology is a star.
    """
    return min(workers, {_STAR: workers, _STAR_WITH_TREE: _FANOUT}.get(topology, 0))


def are_parts(topology: str) -> bool:
    """Return True if several roots each update a part of the weights. If False, each root updates all weights."""
    return not is_central(topology) and topology != _GATHER


class Shares(NamedTuple):
    """Parts of the weights, from 0 to 1, that the master, each worker and each server other than the master update."""

    master: float
    worker: float
    server: float = 0.0


def shares_of(topology: str, workers: int) -> Shares:
    """Return the parts of the weights that ranks update in a job of `workers` workers, if the groups divide evenly."""
    if is_central(topology):
        return Shares(1.0, 0.0)
    if not are_parts(topology):
        return Shares(0.0, 1.0)
    if servers := servers_in(topology):
        return Shares(1 / servers, 0.0, 1 / servers)
    master = _MASTERS_SHARES if topology == _MESH_WITH_MASTER else 0
    return Shares(master / (workers + master), 1 / (workers + master))


def sent_in_a_step(topology: str, workers: int, up: float, down: float) -> tuple[float, float]:
    """Return the bytes of gradients, and of weights, that all ranks together send in a step, if the groups divide evenly.

    `up`: the bytes of one worker's coded gradient; `down`: the bytes of the weights that one worker gets.
    """
    if not is_central(topology) and not are_parts(topology):
        return workers * (workers - 1) * up, 0.0
    sent = workers * (1 - shares_of(topology, workers).worker)  # a worker does not send the bytes of its own part
    return sent * up, sent * down


def group_bytes_of(topology: str, whole: int, workers: int) -> int:
    """Return the size of groups in bytes, for a model of `whole` bytes in a job of `workers` workers.

    If roots update parts of the weights, each root gets about four groups. A group has at least 64 KiB and at most the usual
    size. Roots of a small model get about one group, since a small group takes some codecs nearly as long as one of a
    megabyte; a master with two shares gets two.
    """
    if not are_parts(topology):
        return DEFAULT_GROUP_BYTES
    groups = _GROUPS_A_ROOT * (servers_in(topology) or workers)
    if whole <= SMALL_MODEL_BYTES:
        shares = shares_of(topology, workers)
        groups = round(1 / max(shares.worker, shares.server))
    return min(DEFAULT_GROUP_BYTES, max(_LEAST_GROUP_BYTES, -(-whole // groups)))
