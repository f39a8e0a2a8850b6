"""The hosts of a predicted job, and messages between them as activities of a simulation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from psnode.jobs.planning.profile import HostCosts
from psnode.jobs.planning.simulation import ActivityTimes, Graph, Resource

GOODPUT = 1448 / 1514  # payload of a full Ethernet frame, with TCP's time stamps, over the frame, as shapers of links count it

# kinds of activities, by which the time of a step is told
PASSES, CODING, MASTER, TRANSPORT, LINK, LATENCY = "passes", "coding", "master", "transport", "link", "latency"


@dataclass(frozen=True)
class Scenario:
    """`workers`, each on a host of its own with `cores` cores, and a link of `rate` bit/s each way, None if it costs nothing.

    `round_trip`: of a small message, in seconds. `shared`: all ranks share the cores of one machine, as emulated hosts do.
    `burst`: bytes that a link carries at once after a pause, as links do that a token bucket limits. `uneven`: TCP's connections
    through one link get up to this much more or less than equal parts, so that some workers are ahead of others.
    """

    workers: int
    rate: float | None
    round_trip: float
    cores: int
    shared: bool = False
    burst: float = 0.0
    uneven: float = 0.4


class HostModel:
    """The cores and the link of one rank, in a graph. `inward`, `outward`: the directions of the link; None without a rate."""

    def __init__(self, graph: Graph, cores: int, scenario: Scenario) -> None:
        self.cores = cores
        self.inward = self.outward = None
        if scenario.rate is not None:
            link = Resource(scenario.rate / 8 * GOODPUT, burst=scenario.burst * GOODPUT)
            self.inward, self.outward = graph.resource(link), graph.resource(link)
        self.transport = graph.queue()  # the thread that calls MPI


class HostModels:
    """The hosts of `ranks` ranks, one for each, under a scenario in a graph."""

    def __init__(self, graph: Graph, scenario: Scenario, costs: HostCosts, *, ranks: int) -> None:
        self._graph, self._costs = graph, costs
        self._delay = graph.resource(Resource(float("inf"), 1.0))
        self._uneven = scenario.uneven
        self._half_trip = scenario.round_trip / 2
        pools = [graph.resource(Resource(scenario.cores, 1.0, costs.crowded)) for _ in range(1 if scenario.shared else ranks)]
        self.hosts = [HostModel(graph, pools[0 if scenario.shared else rank], scenario) for rank in range(ranks)]

    def compute(
        self,
        kind: str,
        host: int,
        seconds: float,
        follows: Iterable[int] = (),
        *,
        queue: int | None = None,
        urgency: float = 0.0,
    ) -> int:
        """Add `seconds` of a core of a host."""
        return self._graph.add(kind, seconds, [self.hosts[host].cores], follows, queue=queue, urgency=urgency)

    def transfer(
        self, source: int, target: int, nbytes: float, follows: Iterable[int], connection: int, *, by_mpi: bool = True
    ) -> int:
        """Add a message in a `connection`, a queue, and the work of both ends; return the activity that ends when it is there.

        `by_mpi`: it costs the thread that calls MPI some time at each end, besides that for each byte.
        """
        costs = self._costs
        message, send, receive = (costs.message, costs.sends, costs.takes) if by_mpi else (0.0, costs.send, costs.receive)
        graph, ends = self._graph, (self.hosts[source], self.hosts[target])
        follows = tuple(follows)
        links = [link for link in (ends[0].outward, ends[1].inward) if link is not None]
        place = max(source, target) / max(1, len(self.hosts) - 1)  # of the rank that is not the master, from 0 to 1
        weight = 1.0 + self._uneven * (2 * place - 1)
        wire = graph.add(LINK, nbytes if links else 0.0, links, follows, queue=connection, weight=weight)
        sent = self.compute(TRANSPORT, source, message + nbytes * send, follows, queue=ends[0].transport)
        taken = self.compute(TRANSPORT, target, message + nbytes * receive, follows, queue=ends[1].transport)
        return self.wait(self._half_trip, (wire, sent, taken))

    def wait(self, seconds: float, follows: Iterable[int]) -> int:
        """Add a delay that occupies nothing."""
        return self._graph.add(LATENCY, seconds, [self._delay], follows)

    def cores_in_use(self, schedule: ActivityTimes, start: float, stop: float) -> float:
        """Return the greatest share of a host's cores that work between two times."""
        pools = {host.cores for host in self.hosts}
        return max(
            schedule.load(pool, start, stop) / (self._graph.resources[pool].full * (stop - start)) if stop > start else 0.0
            for pool in pools
        )
