"""A whole job in virtual time, composed of a master, its workers, the paths of their messages, and disturbances."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psnode.config import Config
from psnode.errors import ConfigurationError, PsnodeError
from psnode.jobs.planning.profile import Profile, SchemeCosts
from psnode.jobs.planning.scenario import Scenario
from psnode.jobs.simulating.disturbances import Death, Spread, Standstill, of_rank
from psnode.jobs.simulating.event_loop import EventLoop
from psnode.jobs.simulating.message_paths import MessagePaths
from psnode.jobs.simulating.simulated_master import SimulatedMaster, SimulatedVersion
from psnode.jobs.simulating.simulated_spans import SimulatedSpans
from psnode.jobs.simulating.simulated_worker import SimulatedWorker, StepOrder, WorkerReport

DETECTION = 0.1  # seconds until the master learns of a death, as with ULFM (docs/architecture.md)


@dataclass(frozen=True)
class Disturbances:
    """The disturbances of a job. `detection`: seconds from a death until the master learns of it."""

    spread: Spread = Spread()
    standstills: Sequence[Standstill] = ()
    deaths: Sequence[Death] = ()
    detection: float = DETECTION

    def check(self, workers: int) -> None:
        """Raise ConfigurationError if a disturbance names a rank that is not a worker's."""
        for rank in (*(each.rank for each in self.standstills), *(each.rank for each in self.deaths)):
            if not 1 <= rank <= workers:
                raise ConfigurationError(f"--stop and --kill name workers, which are 1 to {workers}, and not rank {rank}")


@dataclass(frozen=True)
class SimulatedJob:
    """The course of a job. `seconds`: the time at which the last version was made, or at which the last worker was lost.

    `sent`, `received`: by rank, the bytes of gradients and weights on the rank's link. `reports`: by version, the reports of the
    workers whose gradients are in the version. `events`: as in events.jsonl, with virtual times. `spans`: as in timeline.json;
    empty unless recorded. `stop_reason`: None if the job took all steps.
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

    @property
    def step_times(self) -> list[float]:
        """The duration of every round in seconds."""
        ends = [0.0, *(version.finished for version in self.versions)]
        return [end - begin for begin, end in itertools.pairwise(ends)]

    @property
    def staleness(self) -> Counter[int]:
        """The number of group gradients by staleness: the versions from the one computed on to the one added to."""
        return Counter(
            version.number - 1 - gradient.based for version in self.versions for group in version.added for gradient in group
        )

    @property
    def dropped(self) -> int:
        """The number of frames with gradients that were not used."""
        return sum(version.dropped for version in self.versions)


def simulate_job(
    profile: Profile,
    costs: SchemeCosts,
    scenario: Scenario,
    config: Config,
    steps: int,
    disturbances: Disturbances = Disturbances(),
    *,
    timeline: bool = False,
) -> SimulatedJob:
    """Return the course of a job that makes `steps` versions under a scheme of the profile.

    Of `config`, only the consistency rule and the deadlines are used. `scenario.shared` and `scenario.burst` are not modelled.
    `timeline`: True to record the spans of all ranks. Raises ConfigurationError for settings that contradict the number of
    workers, and TransportError as the master of a real job would.
    """
    config.check_workers(scenario.workers)
    disturbances.check(scenario.workers)
    loop = EventLoop()
    paths = MessagePaths(loop, scenario, profile.host)
    spans = SimulatedSpans(enabled=timeline)
    master = SimulatedMaster(loop, paths, profile, costs, scenario, config, steps, spans)
    order = StepOrder.of(profile, costs)
    for rank in range(1, scenario.workers + 1):
        master.workers[rank] = SimulatedWorker(
            rank, loop, paths, master, order, spans,
            goes_on=master.goes_on, factor=disturbances.spread.factors(rank),
            standstills=of_rank(disturbances.standstills, rank),
        )  # fmt: skip
    for death in disturbances.deaths:
        loop.at(death.time, master.workers[death.rank].die)
        loop.at(death.time, paths.cut, death.rank)
        loop.at(death.time + disturbances.detection, master.lose, death.rank)
    master.begin()
    for worker in master.workers.values():
        worker.begin()
    if not loop.run():
        raise PsnodeError("the simulated job waits for something that never comes")
    finished = master.finished
    return SimulatedJob(
        scenario.workers, loop.now, finished, [master.reports_of(version) for version in finished], paths.sent, paths.received,
        master.events.told, spans.events, master.stop_reason,
    )  # fmt: skip
