"""A step of a job in the model: the work of workers and master on each group, in the order in which it becomes possible."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from psnode.exchange.shard.executor import most_lanes
from psnode.jobs.planning.profile import GroupCosts, Profile, SchemeCosts
from psnode.jobs.planning.scenario import CODING, MASTER, PASSES, HostModels, Scenario
from psnode.jobs.planning.simulation import Graph

_STEPS = 5  # simulated; the last one counts, when the pipeline is steady


class StepTime(NamedTuple):
    """The `seconds` of a step, how they are spent by kind along the chain of causes, and the share of cores in use."""

    seconds: float
    spent: dict[str, float]
    cores: float

    @property
    def binds(self) -> str:
        """The resource of which more would shorten the step: cores if all are in use, else the kind with most of the time."""
        if self.cores > 0.95:
            return "cores"
        return max(self.spent, key=lambda kind: self.spent[kind], default=PASSES)


def step_without_links(profile: Profile, costs: SchemeCosts) -> float:
    """Return the modelled seconds of a worker's step on the measured host while nothing else runs: weights are there at once."""
    graph = Graph()
    scenario = Scenario(1, None, 0.0, profile.host.cores)
    worker = _Worker(graph, HostModels(graph, scenario, profile.host, master=False), 0, profile, costs)
    encoded = worker.step([[] for _ in costs.groups], [])
    end = graph.add(PASSES, 0, [], [*encoded, worker.last])
    return float(graph.run().end[end])


def job_step(profile: Profile, costs: SchemeCosts, scenario: Scenario) -> StepTime:
    """Return the step time of `scenario.workers` workers and a master under a scheme."""
    graph = Graph()
    hosts = HostModels(graph, scenario, profile.host, master=True)
    master = _Master(graph, hosts, costs, scenario)
    workers = [_Worker(graph, hosts, rank, profile, costs) for rank in range(1, scenario.workers + 1)]
    ups, downs = [graph.queue() for _ in workers], [graph.queue() for _ in workers]
    arrived: list[list[list[int]]] = [[[] for _ in costs.groups] for _ in workers]
    complete: list[list[int]] = [[] for _ in workers]
    begins = []
    for _ in range(_STEPS):
        frames: list[list[int]] = [[] for _ in costs.groups]
        marks = []
        for place, worker in enumerate(workers):
            encoded = worker.step(arrived[place], complete[place])
            marks.append(worker.backward)
            for index, done in enumerate(encoded):
                there = hosts.transfer(worker.rank, 0, costs.groups[index].up, [done], ups[place])
                frames[index].append(master.handle(there))
        begins.append(marks)
        closed = [master.close(index, frames[index]) for index in range(len(costs.groups))]
        for place, worker in enumerate(workers):
            nbytes = [group.down for group in costs.groups]
            arrived[place] = [
                [hosts.transfer(0, worker.rank, size, [done], downs[place])] for size, done in zip(nbytes, closed, strict=True)
            ]
            complete[place] = [hosts.wait(scenario.round_trip / 2, closed)]
    return steady(graph, hosts, begins)


def steady(graph: Graph, hosts: HostModels, begins: Sequence[Sequence[int]]) -> StepTime:
    """Run the graph; return the time between the last two beginnings of a backward pass, which is the mean over the workers."""
    schedule = graph.run()
    start, stop = (sum(float(schedule.begin[index]) for index in marks) / len(marks) for marks in begins[-2:])
    spent = schedule.path(begins[-1][0], float(schedule.begin[begins[-2][0]]), graph.kinds)
    return StepTime(stop - start, spent, hosts.cores_in_use(schedule, start, stop))


class _Worker:
    """A worker's threads. `backward`: the activity with which the last step's backward pass began; `last`: its last activity."""

    def __init__(self, graph: Graph, hosts: HostModels, rank: int, profile: Profile, costs: SchemeCosts) -> None:
        self._graph, self._hosts, self.rank, self._profile, self._costs = graph, hosts, rank, profile, costs
        self._coder = graph.queue()
        self.last = self.backward = graph.add(PASSES, 0, [])

    def step(self, arrived: Sequence[Sequence[int]], complete: Sequence[int]) -> list[int]:
        """Add a step on weights that `arrived`, by group. Return by group the activity in which its gradient is coded."""
        groups, profile = self._costs.groups, self._profile
        now = 0.0
        for index in sorted(range(len(groups)), key=lambda index: groups[index].needed):
            group = groups[index]
            self._main(min(group.needed, profile.forward) - now)
            now = max(now, min(group.needed, profile.forward))
            self._main(group.apply, arrived[index], CODING)
        self._main(profile.forward - now, complete)
        self.backward = self._main(0.0)
        now, found = 0.0, [0] * len(groups)
        for index in sorted(range(len(groups)), key=lambda index: groups[index].ready):
            group = groups[index]
            self._main(group.ready - now)
            now = max(now, group.ready)
            found[index] = self._hosts.compute(CODING, self.rank, group.encode, [self.last], queue=self._coder, urgency=index)
        self._main(profile.backward - now)
        self._main(self._costs.extra, found)
        return found

    def _main(self, seconds: float, follows: Sequence[int] = (), kind: str = PASSES) -> int:
        """Add work of the training thread."""
        self.last = self._hosts.compute(kind, self.rank, max(seconds, 0.0), [self.last, *follows])
        return self.last


class _Master:
    """The master's main thread and its lanes."""

    def __init__(self, graph: Graph, hosts: HostModels, costs: SchemeCosts, scenario: Scenario) -> None:
        self._graph, self._hosts, self._costs = graph, hosts, costs
        self._main = graph.queue()
        self._lanes = [graph.queue() for _ in range(most_lanes(scenario.cores, len(costs.groups)))]

    def handle(self, arrived: int) -> int:
        """Add the main thread's work on a frame."""
        return self._hosts.compute(MASTER, 0, self._costs.bookkeeping, [arrived], queue=self._main)

    def close(self, index: int, frames: Sequence[int]) -> int:
        """Add the decoding of a group's frames and its update; return the activity in which its weights are ready to be sent."""
        group: GroupCosts = self._costs.groups[index]
        lane = self._lanes[index % len(self._lanes)]
        decoded = [self._hosts.compute(MASTER, 0, group.decode, [frame], queue=lane, urgency=-index) for frame in frames]
        return self._hosts.compute(MASTER, 0, group.update, decoded, queue=lane, urgency=-index)
