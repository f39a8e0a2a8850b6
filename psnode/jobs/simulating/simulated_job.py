"""A whole job in virtual time: the master, the workers, the shards, the paths of their messages, and disturbances."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psnode.config import Config
from psnode.config.amounts import counted
from psnode.config.names import DENSE
from psnode.config.train_settings import UNDECIDED
from psnode.errors import ConfigurationError, PsnodeError, TransportError
from psnode.exchange.routes.refusals import refuse_other_roots
from psnode.exchange.routes.route import Route, have_copies, need_all
from psnode.jobs.planning.profile import Profile, SchemeCosts
from psnode.jobs.planning.routing.link_loads import frames_of
from psnode.jobs.planning.routing.routed_groups import USUAL, RoutedGroups, routed
from psnode.jobs.planning.scenario import Scenario
from psnode.jobs.simulating.disturbances import Death, Spread, Standstill, of_rank
from psnode.jobs.simulating.event_loop import EventLoop
from psnode.jobs.simulating.host_cores import SharedCores
from psnode.jobs.simulating.message_paths import MessagePaths
from psnode.jobs.simulating.simulated_master import SimulatedMaster, SimulatedVersion
from psnode.jobs.simulating.simulated_spans import SimulatedSpans
from psnode.jobs.simulating.simulated_worker import SimulatedWorker, StepOrder, WorkerReport
from psnode.plans.roles import MASTER, Layout

_MOST_FRAMES = 10_000  # the most frames with gradients in a step under another topology than the usual one
DETECTION = 0.1  # seconds until the master learns of a death, as with ULFM (docs/architecture.md)


@dataclass(frozen=True)
class Disturbances:
    """The disturbances of a job. `detection`: seconds from a death until the master learns of it."""

    spread: Spread = Spread()
    standstills: Sequence[Standstill] = ()
    deaths: Sequence[Death] = ()
    detection: float = DETECTION

    def check(self, workers: int) -> None:
        """Raise ConfigurationError if a disturbance names a rank that is not one of `workers` workers."""
        for rank in (*(each.rank for each in self.standstills), *(each.rank for each in self.deaths)):
            if not 1 <= rank <= workers:
                raise ConfigurationError(f"--stop and --kill name workers, which are 1 to {workers}, and not rank {rank}")


@dataclass(frozen=True)
class SimulatedJob:
    """The course of a simulated job.

    `seconds`: the virtual time at which the job ended. `sent`, `received`: by rank, the bytes of gradients and weights on the
    rank's link. `reports`: by version, the reports of the workers whose gradients are in the version. `events`: as in
    events.jsonl, with virtual times. `spans`: as in timeline.json; empty unless they were recorded. `stop_reason`: the reason
    of an early end; None if the job took all steps. `failure`: the error that ended the job, if ranks other than the
    master update weights, otherwise None.
    """

    workers: int
    seconds: float
    versions: Sequence[SimulatedVersion]
    reports: Sequence[Sequence[WorkerReport]]
    sent: Sequence[int]
    received: Sequence[int]
    events: Sequence[Mapping[str, Any]]
    spans: Sequence[dict[str, Any]]
    stop_reason: str | None
    failure: TransportError | None = None

    @property
    def step_times(self) -> list[float]:
        """The duration of every round in seconds."""
        ends = [0.0, *(version.finished for version in self.versions)]
        return [end - begin for begin, end in itertools.pairwise(ends)]

    @property
    def staleness(self) -> Counter[int]:
        """The number of gradients of groups by their staleness.

        The staleness is the number of versions from the one on which a gradient was computed to the one to which it was
        added.
        """
        return Counter(
            version.number - 1 - gradient.based for version in self.versions for group in version.added for gradient in group
        )

    @property
    def dropped(self) -> int:
        """The number of frames with gradients that were not used."""
        return sum(version.dropped for version in self.versions)


def groups_of(profile: Profile, name: str, config: Config, workers: int) -> SchemeCosts | RoutedGroups:
    """Return the costs of the scheme `name` of the profile in a job with the settings `config`.

    Under a topology other than the usual one, the result also has the routes of the groups. Raises ConfigurationError for
    settings and schemes that train refuses under the topology, and if a step has too many frames.
    """
    costs = profile.schemes[name]
    settings = costs.settings
    if config.topology == UNDECIDED:
        raise ConfigurationError("--topology auto is decided at the start of a run: name the topology to simulate")
    refuse_other_roots(config, str(settings.get("aggregator") or ""), downlink=str(settings.get("downlink") or DENSE))
    if config.topology == USUAL:  # uses the measured costs, also of profiles of earlier versions, which contain no plans
        return costs
    found = routed(profile, name, config.topology, workers)
    if found.frames > _MOST_FRAMES:
        raise ConfigurationError(
            f"a step of {counted(found.frames, 'frame')} with gradients takes too long to simulate under --topology "
            f"{config.topology}: ask for fewer workers"
        )
    return found


def simulate_job(
    profile: Profile,
    costs: SchemeCosts | RoutedGroups,
    scenario: Scenario,
    config: Config,
    steps: int,
    disturbances: Disturbances = Disturbances(),
    *,
    timeline: bool = False,
) -> SimulatedJob:
    """Return the course of a job that makes `steps` versions under a scheme of the profile.

    `costs`: the costs of the scheme, see `groups_of`; if they have no routes, the master is the root of all groups. Of
    `config`, the consistency rule, the deadlines, `min_workers`, the order of additions and the topology's name have an
    effect. `shared`, `burst` and `master_rate` of the scenario are not modelled. `timeline`: True to record the spans of all
    ranks. Raises ConfigurationError for settings that contradict the number of workers. Raises TransportError as the
    master of a real job would. But if other ranks than the master update weights, this error becomes the result's `failure`.
    """
    config.check_workers(scenario.workers)
    disturbances.check(scenario.workers)
    if isinstance(costs, RoutedGroups):
        layout, routes, sizes, costs = costs.layout, costs.routes, costs.sizes, costs.costs
    else:
        layout = Layout(scenario.workers)
        routes, sizes = (Route(MASTER, layout.readers),) * len(costs.groups), ()
    loop, spans = EventLoop(), SimulatedSpans(enabled=timeline)
    cores = _shared_cores(loop, profile, scenario, layout, routes, disturbances)
    pairs = {(frame.source, frame.target) for frame in frames_of(routes, layout.computing)}
    crossing = any(MASTER not in pair and pair[0] != pair[1] for pair in pairs)
    paths = MessagePaths(loop, scenario, profile.host, ranks=layout.others.stop, crossing=crossing, cores=cores)
    master = SimulatedMaster(
        loop, paths, costs, scenario, config, steps, routes=routes, cores=cores, whole=profile.nbytes, sizes=sizes, spans=spans,
        standstills=disturbances.standstills,
    )  # fmt: skip
    order = StepOrder.of(profile, costs)
    for rank in layout.computing:
        master.workers[rank] = SimulatedWorker(
            rank, loop, paths, master, order, spans,
            routes=routes, shards=dict(master.shards), goes_on=master.goes_on, cores=cores.get(rank),
            factor=disturbances.spread.factors(rank), standstills=of_rank(disturbances.standstills, rank),
        )  # fmt: skip
    for death in disturbances.deaths:
        loop.at(death.time, master.workers[death.rank].die)
        loop.at(death.time, paths.cut, death.rank)
        loop.at(death.time + disturbances.detection, master.lose, death.rank)
    failure = None
    try:
        _run(loop, master)
    except TransportError as error:
        if not (need_all(routes) or have_copies(routes)):
            raise
        failure = error
    finished = master.finished
    return SimulatedJob(
        scenario.workers, loop.now, finished, [master.reports_of(version) for version in finished], paths.sent, paths.received,
        master.events.told, spans.events, "lost" if failure else master.stop_reason, failure,
    )  # fmt: skip


def _shared_cores(
    loop: EventLoop, profile: Profile, scenario: Scenario, layout: Layout, routes: Sequence[Route], disturbances: Disturbances
) -> dict[int, SharedCores]:
    """Return, by the rank of a worker, the cores that the worker shares with a shard; empty if no worker has a shard."""
    if not any(root in layout.computing for route in routes for root in route.roots):
        return {}
    return {
        rank: SharedCores(loop, scenario.cores, profile.host.crowded, of_rank(disturbances.standstills, rank))
        for rank in layout.computing
    }


def _run(loop: EventLoop, master: SimulatedMaster) -> None:
    """Run the job until the master ends it. Raises PsnodeError if no event is left although the master has not ended the job."""
    master.begin()
    for worker in master.workers.values():
        worker.begin()
    if not loop.run():
        raise PsnodeError("the simulated job waits for something that never comes")
