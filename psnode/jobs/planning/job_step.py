"""A model of a step of a job: the work of workers and roots on each group, in the order in which it becomes possible.

A group's gradients and weights travel on the group's route. The root of the group decodes, updates and codes on the cores of
its own host. If the root is a worker, this work shares its cores with the worker's passes and coding.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from psnode.exchange.routes.route import Route
from psnode.exchange.shard.executor import most_lanes
from psnode.jobs.planning.fluid.simulation import Graph
from psnode.jobs.planning.profile import GroupCosts, Profile, SchemeCosts
from psnode.jobs.planning.scenario import CODING, LINK, MASTER, PASSES, HostModels, Scenario
from psnode.plans.prediction import MOST_SPANS, PredictedSpan
from psnode.plans.roles import MASTER as MASTER_RANK
from psnode.plans.roles import Layout

STEPS = 5  # simulated steps; only the last one counts, since the pipeline is steady by then
_OF_ROOT = ("decode", "update")  # kinds of work on a root
_DIGITS, _TOUCHING = 7, 2e-7  # decimals of the seconds of spans; seconds between spans that count as touching


class StepTime(NamedTuple):
    """The predicted duration of a step, and the work that determines it.

    `seconds`: the duration. `spent`: by kind of work, the seconds along the chain of causes that ends the step. `cores`: the
    share of the cores in use, on the host where it is greatest.
    """

    seconds: float
    spent: dict[str, float]
    cores: float

    @property
    def binds(self) -> str:
        """The bottleneck: "cores" if nearly all cores are in use, otherwise the kind of work that takes the most time."""
        if self.cores > 0.95:
            return "cores"
        return max(self.spent, key=lambda kind: self.spent[kind], default=PASSES)


def step_without_links(profile: Profile, costs: SchemeCosts) -> float:
    """Return the modelled seconds of a worker's step on the measured host, without the work of other ranks.

    In this model, all weights have already arrived when the step begins.
    """
    graph = Graph()
    scenario = Scenario(1, None, 0.0, profile.host.cores)
    worker = StepWorker(graph, HostModels(graph, scenario, profile.host, ranks=1), 0, profile, costs, [])
    encoded = worker.step([[] for _ in costs.groups], [])
    end = graph.add(PASSES, 0, [], [*encoded, worker.last])
    return float(graph.run().end[end])


def job_step(profile: Profile, costs: SchemeCosts, scenario: Scenario, routes: Sequence[Route] | None = None) -> StepTime:
    """Return the step time of a master and `scenario.workers` workers under a scheme.

    `routes`: the routes of the groups of `costs`; without routes, the master is the root of all groups.
    """
    job = _Job(profile, costs, scenario, routes)
    return steady(job.graph, job.hosts, job.begins)


def step_spans(
    profile: Profile, costs: SchemeCosts, scenario: Scenario, routes: Sequence[Route] | None = None
) -> tuple[PredictedSpan, ...]:
    """Return the work, as spans, in the step whose time `job_step` returns. The step lies between the ends of two versions.

    If only a burst made this step shorter than its bytes take, `job_step` returns a longer time than the last span's end.

    A version ends when the last of its groups is updated. The spans are those of the root of this group, and of the worker
    whose gradient is the last to reach this root: this worker's work and the frames from and to it. Spans of the same kind
    and group that touch each other are joined. The result is empty if there are more than MOST_SPANS spans, and for a scheme
    without groups.
    """
    if not costs.groups:
        return ()
    job = _Job(profile, costs, scenario, routes)
    times = job.graph.run()

    def ended(note: _Note) -> float:
        return float(times.end[note.last])

    before, last = (max((note for note in notes if note.kind == "update"), key=ended) for notes in job.notes[-2:])
    start, stop, root = ended(before), ended(last), last.rank
    frames = [note for note in job.notes[-1] if note.kind == "in" and note.root == root]
    worker = max(frames, key=lambda note: (ended(note), -note.rank)).rank if frames else root
    found = list[PredictedSpan]()
    for note in itertools.chain.from_iterable(job.notes):
        if note.rank == (root if note.kind in _OF_ROOT else worker):
            begin, end = max(float(times.begin[note.first]), start) - start, min(ended(note), stop) - start
            if end > begin:
                found.append(PredictedSpan(note.kind, note.group, round(begin, _DIGITS), round(end, _DIGITS)))
    joined = list[PredictedSpan]()
    for span in sorted(found):
        if joined and joined[-1][:2] == span[:2] and span.begin <= joined[-1].end + _TOUCHING:
            joined[-1] = joined[-1]._replace(end=max(span.end, joined[-1].end))
        else:
            joined.append(span)
    return tuple(joined) if len(joined) <= MOST_SPANS else ()


class _Note(NamedTuple):
    """Work of a kind of psnode.plans.prediction.SPANS, from the beginning of activity `first` to the end of activity `last`.

    `rank`: the worker for a worker's own work, and for frames with its gradient or with weights for it; otherwise the root.
    `root`: the rank to which a frame with a gradient goes; None for everything else.
    """

    kind: str
    rank: int
    group: int
    first: int
    last: int
    root: int | None = None


class _Job:
    """The graph of several steps of a job.

    `begins`: by step, the activities with which the workers' backward passes begin. `notes`: by step, all work.
    """

    def __init__(self, profile: Profile, costs: SchemeCosts, scenario: Scenario, routes: Sequence[Route] | None = None) -> None:
        layout = Layout(scenario.workers)
        self._routes = routes = [Route(MASTER_RANK, layout.readers) for _ in costs.groups] if routes is None else routes
        roots: dict[int, list[int]] = {}
        for index, route in enumerate(routes):
            for root in route.roots:
                roots.setdefault(root, []).append(index)
        self.graph = graph = Graph()
        self.hosts = hosts = HostModels(graph, scenario, profile.host, ranks=1 + max(layout.computing[-1], *roots, MASTER_RANK))
        self.notes: list[list[_Note]] = []
        self.begins: list[list[int]] = []
        self._connections: dict[tuple[int, int], int] = {}
        self._costs = costs
        self._roots = {rank: StepRoot(graph, hosts, rank, groups, costs, scenario) for rank, groups in roots.items()}
        workers = [StepWorker(graph, hosts, rank, profile, costs, self.notes) for rank in layout.computing]
        arrived: list[list[list[int]]] = [[[] for _ in costs.groups] for _ in workers]
        complete: list[list[int]] = [[] for _ in workers]
        for _ in range(STEPS):
            self.notes.append([])
            frames: list[dict[int, list[int]]] = [{root: [] for root in route.roots} for route in routes]
            marks = []
            for place, worker in enumerate(workers):
                encoded = worker.step(arrived[place], complete[place])
                marks.append(worker.backward)
                report = hosts.tell(worker.rank, MASTER_RANK, [worker.last])
                hosts.occupy(MASTER_RANK, costs.bookkeeping, [report])
                for index, done in enumerate(encoded):
                    for root in routes[index].up(worker.rank):
                        there = self._send("in", worker.rank, root, index, costs.groups[index].up, done)
                        frames[index][root].append(self._roots[root].handle(there))
            self.begins.append(marks)
            closed = [
                {root: self._roots[root].close(index, found, self.notes[-1]) for root, found in there.items()}
                for index, there in enumerate(frames)
            ]
            # the master is informed of groups that close on other ranks before it informs all workers
            known = [
                done if root == MASTER_RANK else hosts.tell(root, MASTER_RANK, [done])
                for there in closed
                for root, done in there.items()
            ]
            for root in self._roots:
                if root != MASTER_RANK:
                    hosts.tell(MASTER_RANK, root, known)  # the order that opens the next round
            for place, worker in enumerate(workers):
                arrived[place] = [[self._arrival(index, worker.rank, closed[index])] for index in range(len(routes))]
                complete[place] = [hosts.tell(MASTER_RANK, worker.rank, known)]

    def _arrival(self, index: int, rank: int, there: dict[int, int]) -> int:
        """Return the activity that ends when the weights of the group `index` have arrived on `rank`.

        `there`: these activities by rank, as far as they are known. This method adds the missing ones.
        """
        if rank not in there:
            source = self._routes[index].down(rank)
            follows = self._arrival(index, source, there)
            there[rank] = self._send("out", source, rank, index, self._costs.groups[index].down, follows)
        return there[rank]

    def _send(self, kind: str, source: int, target: int, group: int, nbytes: int, follows: int) -> int:
        """Add a frame of a group, and return the activity that ends when it arrives. A frame to its own sender takes no time."""
        if source == target:
            return follows
        if (source, target) not in self._connections:
            self._connections[source, target] = self.graph.queue()
        first = len(self.graph.work)
        there = self.hosts.transfer(source, target, nbytes, [follows], self._connections[source, target])
        note = _Note(kind, source, group, first, there, target) if kind == "in" else _Note(kind, target, group, first, there)
        self.notes[-1].append(note)
        return there


def steady(graph: Graph, hosts: HostModels, begins: Sequence[Sequence[int]]) -> StepTime:
    """Run the graph, and return the time of its last step.

    The step is the time between the last two beginnings of a backward pass, as a mean over the workers, but at least the time
    in which the links carry the bytes of a step. `begins`: see _Job.
    """
    schedule = graph.run()
    start, stop = (sum(float(schedule.begin[index]) for index in marks) / len(marks) for marks in begins[-2:])
    spent = schedule.path(begins[-1][0], float(schedule.begin[begins[-2][0]]), graph.kinds)
    seconds, least = stop - start, hosts.link_seconds(len(begins))
    if least <= seconds:
        return StepTime(seconds, spent, hosts.cores_in_use(schedule, start, stop))
    spent[LINK] = spent.get(LINK, 0.0) + least - seconds
    return StepTime(least, spent, hosts.cores_in_use(schedule, start, stop) * seconds / least)


class StepWorker:
    """The threads of a worker, in a graph.

    `backward`: the activity with which the last step's backward pass begins. `last`: the latest activity of the training
    thread.
    """

    def __init__(
        self, graph: Graph, hosts: HostModels, rank: int, profile: Profile, costs: SchemeCosts, notes: list[list[_Note]]
    ) -> None:
        self._graph, self._hosts, self.rank, self._profile, self._costs = graph, hosts, rank, profile, costs
        self._notes = notes
        self._coder = graph.queue()
        self.last = self.backward = graph.add(PASSES, 0, [])

    def step(self, arrived: Sequence[Sequence[int]], complete: Sequence[int]) -> list[int]:
        """Add a step, and return for each group the activity that codes its gradient.

        `arrived`: for each group, the activities after which its weights are on the worker. `complete`: the activities after
        which the version is complete.
        """
        groups, profile = self._costs.groups, self._profile
        now = 0.0
        for index in sorted(range(len(groups)), key=lambda index: groups[index].needed):
            group = groups[index]
            self._main(min(group.needed, profile.forward) - now)
            now = max(now, min(group.needed, profile.forward))
            self._main(group.apply, arrived[index], CODING, index)
        self._main(profile.forward - now, complete)
        self.backward = self._main(0.0)
        now, found = 0.0, [0] * len(groups)
        for index in sorted(range(len(groups)), key=lambda index: groups[index].ready):
            group = groups[index]
            self._main(group.ready - now)
            now = max(now, group.ready)
            found[index] = self._hosts.compute(CODING, self.rank, group.encode, [self.last], queue=self._coder, urgency=index)
            self._note("encode", index, found[index], found[index])
        self._main(profile.backward - now)
        first = len(self._graph.work)
        self.last = self._hosts.compute(PASSES, self.rank, self._costs.extra, [self.last, *found])
        self._note("passes", -1, first, self.last)
        return found

    def _main(self, seconds: float, follows: Sequence[int] = (), kind: str = PASSES, group: int = -1) -> int:
        """Add work of the training thread after its previous work and the activities `follows`, and return the activity.

        `kind`: PASSES, or CODING if the thread decodes the weights of `group`.
        """
        first, after = len(self._graph.work), [self.last, *follows]
        if kind == PASSES:
            self.last = self._hosts.passes(self.rank, max(seconds, 0.0), after)
        else:
            self.last = self._hosts.compute(kind, self.rank, max(seconds, 0.0), after)
        self._note("passes" if kind == PASSES else "apply", group, first, self.last)
        return self.last

    def _note(self, kind: str, group: int, first: int, last: int) -> None:
        if self._notes:
            self._notes[-1].append(_Note(kind, self.rank, group, first, last))


class StepRoot:
    """The threads of the shard on `rank`, the root of `groups`: its main thread, which receives frames, and its lanes."""

    def __init__(
        self, graph: Graph, hosts: HostModels, rank: int, groups: Sequence[int], costs: SchemeCosts, scenario: Scenario
    ) -> None:
        self._hosts, self._rank, self._costs = hosts, rank, costs
        self._main = graph.queue()
        lanes = [graph.queue() for _ in range(most_lanes(scenario.cores, len(groups)))]
        self._lanes = {group: lanes[place % len(lanes)] for place, group in enumerate(groups)}

    def handle(self, arrived: int, copies: int = 1) -> int:
        """Add the main thread's work on `copies` frames that arrive with the activity `arrived`, and return the activity."""
        return self._hosts.compute(MASTER, self._rank, copies * self._costs.bookkeeping, [arrived], queue=self._main)

    def close(self, index: int, frames: Sequence[int], notes: list[_Note], copies: Sequence[int] | None = None) -> int:
        """Add the decoding of a group's frames and its update. Return the activity after which its weights can be sent.

        `frames`: the activities with which frames arrive. `copies`: for each of them the number of frames, by default one.
        """
        group: GroupCosts = self._costs.groups[index]
        lane, rank = self._lanes[index], self._rank
        decoded = [
            self._hosts.compute(MASTER, rank, count * group.decode, [frame], queue=lane, urgency=-index)
            for frame, count in zip(frames, copies or [1] * len(frames), strict=True)
        ]
        updated = self._hosts.compute(MASTER, rank, group.update, decoded, queue=lane, urgency=-index)
        notes += [_Note("decode", rank, index, each, each) for each in decoded]
        notes.append(_Note("update", rank, index, updated, updated))
        return updated
