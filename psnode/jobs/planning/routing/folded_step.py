"""A model of a step in which one worker stands for all workers of a job, which must be alike.

If workers update the weights, a graph of all frames grows with the square of the number of workers. The folded graph has
only one worker. The frames of all workers for a group arrive at the same time, because they share the root's link equally.
So the one worker's frame gets a share of that link, and the root then decodes as many frames as there are workers. The
worker's own link carries its own gradients and weights, and the frames of the groups of which it is a root. On the hosts
of other roots, the folded graph leaves out the workers: their passes and coding, and the frames that they send and receive
as workers.

If there are very many roots, neighbouring groups of about equal sizes with different roots are bundled: one root stands for
the roots of a bundle, and its link carries the frames of all of them in the time of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from psnode.errors import ConfigurationError
from psnode.jobs.planning.fluid.simulation import Graph, Resource
from psnode.jobs.planning.job_step import STEPS, StepRoot, StepTime, StepWorker, steady
from psnode.jobs.planning.profile import GroupCosts, Profile, SchemeCosts
from psnode.jobs.planning.routing.routed_groups import RoutedGroups
from psnode.jobs.planning.scenario import GOODPUT, LINK, TRANSPORT, HostModels, Scenario
from psnode.plans.roles import MASTER

_MOST_ROOTS = 128  # with more roots, groups are bundled
_ALIKE = 1.25  # the largest group of a bundle has at most this many times the bytes of the smallest one


def folds(groups: RoutedGroups, scenario: Scenario) -> bool:
    """Return True if one worker can stand for all workers, because roots send weights directly to readers, or send none.

    Ranks that share the cores of one machine are not folded.
    """
    alone = [route for route in groups.routes if len(route.roots) == 1]
    direct = all(route.down(reader) == route.root for route in alone for reader in (min(route.readers), max(route.readers)))
    return direct and not scenario.shared


def folded_step(profile: Profile, groups: RoutedGroups, scenario: Scenario) -> StepTime:
    """Return the step time of a job whose workers are all alike (see `folds`). `scenario.uneven` is ignored."""
    if not folds(groups, scenario):
        raise ConfigurationError("one worker cannot stand for all workers of this job")
    job = _FoldedJob(profile, groups, scenario)
    return steady(job.graph, job.hosts, job.begins)


def bytes_sent(groups: RoutedGroups, rank: int) -> int:
    """Return the bytes that worker `rank` sends in a step: its gradients, and the weights that it updates."""
    found = 0
    for route, group in zip(groups.routes, groups.costs.groups, strict=True):
        found += group.up * (len(route.roots) - (rank in route.roots))
        if route.roots == (rank,):
            found += group.down * (len(route.readers) - (rank in route.readers))
    return found


def _bundled(groups: RoutedGroups, rank: int) -> list[list[int]]:
    """Return the groups in bundles: lists of neighbouring groups of about equal sizes.

    The groups of a bundle have different workers with neighbouring ranks as their roots. `rank` is no root of a bundle
    with several groups.
    """
    workers = sorted({route.root for route in groups.routes if len(route.roots) == 1} & set(groups.layout.computing) - {rank})
    most = -(-len(workers) // _MOST_ROOTS)
    near = {root: place // most for place, root in enumerate(workers)} if most else {}
    found: list[list[int]] = []
    for index, route in enumerate(groups.routes):
        last = found[-1] if found else []
        roots = {groups.routes[other].root for other in last}
        sizes = [groups.costs.groups[other].up for other in (*last, index)]
        joins = last and len(route.roots) == 1 and route.root in near and route.root not in roots
        if joins and {near.get(root) for root in roots} == {near[route.root]} and max(sizes) <= _ALIKE * min(sizes):
            last.append(index)
        else:
            found.append([index])
    return found


def _merged(costs: SchemeCosts, bundles: Sequence[Sequence[int]]) -> SchemeCosts:
    """Return costs with one group for each bundle.

    The worker's costs are sums over the groups of the bundle. Those of roots are means, because the roots work at the same
    time.
    """

    def of(bundle: Sequence[int]) -> GroupCosts:
        found = [costs.groups[index] for index in bundle]
        sums = {key: sum(getattr(group, key) for group in found) for key in ("up", "down", "encode", "apply")}
        means = {key: sum(getattr(group, key) for group in found) / len(found) for key in ("decode", "update")}
        ready, needed = max(group.ready for group in found), min(group.needed for group in found)
        return replace(found[0], **sums, **means, ready=ready, needed=needed)

    return replace(costs, groups=tuple(map(of, bundles)))


class _FoldedJob:
    """The folded graph of several steps of a job.

    `begins`: by step, the activity with which the worker's backward pass begins.
    """

    def __init__(self, profile: Profile, groups: RoutedGroups, scenario: Scenario) -> None:
        self._layout, self._scenario = groups.layout, scenario
        self._workers = len(groups.layout.computing)
        self._rank = rank = groups.layout.computing[-1]  # no other worker is the root of fewer groups
        self._bundles = _bundled(groups, rank)
        self._costs = _merged(groups.costs, self._bundles)
        self._routes = [groups.routes[bundle[0]] for bundle in self._bundles]
        roots: dict[int, list[int]] = {}
        for index in range(len(self._routes)):
            roots.setdefault(self._root_of(index), []).append(index)
        self.graph = graph = Graph()
        self.hosts = hosts = HostModels(graph, scenario, profile.host, ranks=1 + max(rank, *roots))
        self._roots = {root: StepRoot(graph, hosts, root, own, self._costs, scenario) for root, own in roots.items()}
        sizes = {root: max(len(self._bundles[index]) for index in own) for root, own in roots.items()}
        self._shares = {root: (self._share(root, size), self._share(root, size)) for root, size in sizes.items() if root != rank}
        self._connections = {root: (graph.queue(), graph.queue()) for root in roots}
        self.begins: list[list[int]] = []
        worker = StepWorker(graph, hosts, rank, profile, self._costs, [])
        arrived: list[list[int]] = [[] for _ in self._routes]
        complete: list[int] = []
        for _ in range(STEPS):
            encoded = worker.step(arrived, complete)
            self.begins.append([worker.backward])
            closed = [self._closed(index, done) for index, done in enumerate(encoded)]
            known = hosts.wait(hosts.half_trip, closed)  # the master is informed
            complete = [hosts.wait(hosts.half_trip, [known])]
            # the worker's report and the end of the version, and as a root also its groups and the order for the next round
            own = 2 + (1 + len(roots[rank]) if rank in roots else 0)
            hosts.occupy(rank, own * hosts.costs.message, [worker.last])
            if MASTER in roots:
                hosts.occupy(MASTER, self._workers * (2 * hosts.costs.message + self._costs.bookkeeping), [worker.last])
            arrived = [[self._weights(index, done)] for index, done in enumerate(closed)]

    def _copies(self, root: int) -> int:
        """Return the number of workers that exchange frames with `root` over a link: all workers except `root` itself."""
        return self._workers - (root in self._layout.computing)

    def _share(self, root: int, size: int) -> int:
        """Return a resource for one direction of a link that carries the frames between one worker and a bundle of roots.

        Its rate is the worker's share of the rates of the roots' links. `size`: the number of roots in the bundle, which
        are like `root`. Returns 0, which stands for no resource, if the links have no rate.
        """
        scenario = self._scenario
        rate = scenario.rate if root != MASTER or scenario.master_rate is None else scenario.master_rate
        if rate is None:
            return 0
        copies = self._copies(root) / size
        return self.graph.resource(Resource(rate / 8 * GOODPUT / copies, burst=scenario.burst * GOODPUT / copies))

    def _root_of(self, index: int) -> int:
        roots = self._routes[index].roots
        return self._rank if self._rank in roots else roots[0]

    def _closed(self, index: int, encoded: int) -> int:
        """Add the frames of all workers for a group, and its update. Return the activity after which its weights are known."""
        root = self._root_of(index)
        copies, role = self._copies(root), self._roots[root]
        frames, counts = [], []
        if copies:
            frames.append(role.handle(self._to_root(index, root, copies, encoded), copies))
            counts.append(copies)
        if copies < self._workers:  # the root is a worker, and has its own gradient
            frames.append(role.handle(encoded))
            counts.append(1)
        return role.close(index, frames, [], counts)

    def _to_root(self, index: int, root: int, copies: int, encoded: int) -> int:
        """Add the frames with gradients of `copies` workers for a group. Return the activity that ends when all have arrived."""
        here, queue = self.hosts.hosts[self._rank], self._connections[root][0]
        whole, size = self._costs.groups[index].up, len(self._bundles[index])
        nbytes = whole / size
        if len(self._routes[index].roots) > 1:  # all workers send to all others
            found = [self._wire((here.outward, here.inward), copies * nbytes, encoded, queue)]
            found += [self._sends(self._rank, copies, nbytes, encoded), self._takes(self._rank, copies, nbytes, encoded)]
        elif root == self._rank:
            found = [self._wire((here.inward,), copies * nbytes, encoded, queue)]
            found += [self._takes(root, copies, nbytes, encoded)]
        else:
            found = [self._wire((here.outward, self._shares[root][0]), whole, encoded, queue)]
            found += [self._sends(self._rank, size, nbytes, encoded), self._takes(root, copies, nbytes, encoded)]
        return self.hosts.wait(self.hosts.half_trip, found)

    def _weights(self, index: int, closed: int) -> int:
        """Add the frames with a group's weights to all workers. Return the activity that ends when the one worker has them."""
        if len(self._routes[index].roots) > 1:
            return closed
        root, whole, size = self._root_of(index), self._costs.groups[index].down, len(self._bundles[index])
        nbytes = whole / size
        here, copies, queue = self.hosts.hosts[self._rank], self._copies(root), self._connections[root][1]
        if root == self._rank:
            if copies:
                self._wire((here.outward,), copies * nbytes, closed, queue)
                self._sends(root, copies, nbytes, closed)
            return closed
        found = [self._wire((self._shares[root][1], here.inward), whole, closed, queue)]
        found += [self._sends(root, copies, nbytes, closed), self._takes(self._rank, size, nbytes, closed)]
        return self.hosts.wait(self.hosts.half_trip, found)

    def _wire(self, links: Sequence[int | None], nbytes: float, follows: int, queue: int) -> int:
        """Add the transfer of `nbytes` bytes over at most two links."""
        found = [link for link in links if link]
        return self.graph.add(LINK, nbytes if found else 0, found, [follows], queue=queue)

    def _sends(self, rank: int, count: int, nbytes: float, follows: int) -> int:
        """Add the work of `rank` to send `count` frames of `nbytes` bytes."""
        return self._transport(rank, count * (self.hosts.costs.message + nbytes * self.hosts.costs.sends), follows)

    def _takes(self, rank: int, count: int, nbytes: float, follows: int) -> int:
        """Add the work of `rank` to receive `count` frames of `nbytes` bytes."""
        return self._transport(rank, count * (self.hosts.costs.message + nbytes * self.hosts.costs.takes), follows)

    def _transport(self, rank: int, seconds: float, follows: int) -> int:
        return self.hosts.compute(TRANSPORT, rank, seconds, [follows], queue=self.hosts.hosts[rank].transport)
