"""The hosts of a predicted job, and messages between them as activities of a simulation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from psnode.jobs.planning.fluid.simulation import ActivityTimes, Graph, Resource
from psnode.jobs.planning.profile import HostCosts
from psnode.plans.roles import MASTER as MASTER_RANK

GOODPUT = 1448 / 1514  # payload of a full Ethernet frame with TCP time stamps, divided by the frame as link shapers count it

# kinds of activities, by which the time of a step is broken down
PASSES, CODING, MASTER, TRANSPORT, LINK, LATENCY = "passes", "coding", "master", "transport", "link", "latency"


@dataclass(frozen=True)
class Scenario:
    """The hosts of a predicted job: `workers` workers, each on a host with `cores` cores and a link of `rate` bit/s each way.

    If `rate` is None, transfers cost no time. `round_trip`: the seconds that a small message and its answer take. `shared`:
    True if all ranks share the cores of one machine, as on emulated hosts. `burst`: bytes that a link carries immediately
    after a pause, as if limited by a token bucket. `uneven`: connections through one link get up to this fraction more or less
    than equal shares of it, so that some workers are ahead of others. `master_rate`: the rate of the master's link in
    bit/s, if it differs from `rate`.
    """

    workers: int
    rate: float | None
    round_trip: float
    cores: int
    shared: bool = False
    burst: float = 0.0
    uneven: float = 0.0
    master_rate: float | None = None

    def latency(self, costs: HostCosts) -> float:
        """Return the seconds from the departure of a small message until its receiver works on it.

        If there are at least as many workers as shared cores, all cores are at work, so the receiver also waits for a core.
        """
        return self.round_trip / 2 + (costs.wake if self.shared and self.workers >= self.cores else 0.0)


class HostModel:
    """The cores and the link of one rank, as resources of a graph.

    `inward`, `outward`: the two directions of the link of `rate` bit/s; None if `rate` is None. `burst`: see Scenario.
    """

    def __init__(self, graph: Graph, cores: int, rate: float | None, burst: float) -> None:
        self.cores = cores
        self.inward = self.outward = None
        if rate is not None:
            link = Resource(rate / 8 * GOODPUT, burst=burst * GOODPUT)
            self.inward, self.outward = graph.resource(link), graph.resource(link)
        self.transport = graph.queue()  # the thread that calls MPI
        self.control = graph.queue()  # its work on control messages, which delays no frame in this model


class HostModels:
    """The hosts of `ranks` ranks in a scenario, as resources of a graph. Every rank has its own host.

    If the scenario is `shared`, the hosts have the same cores.
    """

    def __init__(self, graph: Graph, scenario: Scenario, costs: HostCosts, *, ranks: int) -> None:
        self._graph, self.costs = graph, costs
        self._longer = costs.slowest(scenario.workers) - 1
        self._delay = graph.resource(Resource(float("inf"), 1.0))
        self._uneven = scenario.uneven
        self.latency, self.half_trip = scenario.latency(costs), scenario.round_trip / 2
        turns = costs.turns if scenario.shared else 1.0
        cores = Resource(scenario.cores, 1.0, costs.crowded, turns=turns)
        pools = [graph.resource(cores) for _ in range(1 if scenario.shared else ranks)]
        rates = [scenario.rate] * ranks
        if scenario.master_rate is not None:
            rates[MASTER_RANK] = scenario.master_rate
        self.hosts = [
            HostModel(graph, pools[0 if scenario.shared else rank], rates[rank], scenario.burst) for rank in range(ranks)
        ]

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
        """Add an activity that takes `seconds` on a core of a host."""
        return self._graph.add(kind, seconds, [self.hosts[host].cores], follows, queue=queue, urgency=urgency)

    def passes(self, host: int, seconds: float, follows: Iterable[int] = ()) -> int:
        """Add a part of the passes of a worker, which takes `seconds` on a core, and return the activity with which it ends.

        It ends as late as on the slowest worker, for which all others wait at the end of a step. This wait needs no core.
        """
        done = self.compute(PASSES, host, seconds, follows)
        return self._graph.add(PASSES, self._longer * seconds, [self._delay], [done]) if self._longer > 0 else done

    def transfer(self, source: int, target: int, nbytes: float, follows: Iterable[int], connection: int) -> int:
        """Add a message through MPI and the work of both ends for it. Return the activity that ends when it has arrived.

        `connection`: the queue in which the message waits for earlier ones.
        """
        costs, ends = self.costs, (self.hosts[source], self.hosts[target])
        follows = tuple(follows)
        wire = self.carry(source, target, nbytes, follows, connection)
        sending, taking = costs.message + nbytes * costs.sends, costs.message + nbytes * costs.takes
        sent = self.compute(TRANSPORT, source, sending, follows, queue=ends[0].transport)
        taken = self.compute(TRANSPORT, target, taking, follows, queue=ends[1].transport)
        return self.wait(self.latency, (wire, sent, taken))

    def carry(self, source: int, target: int, nbytes: float, follows: Iterable[int], connection: int) -> int:
        """Add the transfer of a message by the links, without the work of its ends, and return the activity.

        `connection`: the queue in which the message waits for earlier ones.
        """
        ends = (self.hosts[source], self.hosts[target])
        links = [link for link in (ends[0].outward, ends[1].inward) if link is not None]
        place = max(source, target) / max(1, len(self.hosts) - 1)  # position of the rank that is not the master, from 0 to 1
        weight = 1.0 + self._uneven * (2 * place - 1)
        return self._graph.add(LINK, nbytes if links else 0.0, links, follows, queue=connection, weight=weight)

    def tell(self, source: int, target: int, follows: Iterable[int]) -> int:
        """Add a control message, and return the activity that ends when it arrives after half a round trip.

        The work of both ends does not delay the message itself. It only occupies cores.
        """
        follows = tuple(follows)
        arrived = self.wait(self.half_trip, follows)
        self.occupy(source, self.costs.message, follows)
        self.occupy(target, self.costs.message, [arrived])
        return arrived

    def occupy(self, rank: int, seconds: float, follows: Iterable[int]) -> None:
        """Add work on a control message, which takes `seconds` on a core of `rank`, and for which nothing waits."""
        self.compute(TRANSPORT, rank, seconds, follows, queue=self.hosts[rank].control)

    def wait(self, seconds: float, follows: Iterable[int]) -> int:
        """Add a delay of `seconds` that uses neither cores nor links, and return its activity."""
        return self._graph.add(LATENCY, seconds, [self._delay], follows)

    def link_seconds(self, steps: int) -> float:
        """Return the seconds that the bytes of a step take on the link where they take longest, without bursts.

        `steps`: the number of steps in the graph. No step of a long job is shorter, although bursts may carry the bytes of a few.
        """
        resources = self._graph.resources
        work = np.bincount(np.array(self._graph.places).T.ravel(), np.tile(self._graph.work, 2), len(resources))
        return max((work[place] / steps / each.capacity for place, each in enumerate(resources) if each.burst), default=0.0)

    def cores_in_use(self, schedule: ActivityTimes, start: float, stop: float) -> float:
        """Return the mean share of cores in use between two times, on the host where this share is greatest."""
        if stop <= start:
            return 0.0
        room = np.array([each.room for each in self._graph.resources])
        shares = schedule.in_use(room, start, stop)
        return float(max(shares[host.cores] for host in self.hosts))
