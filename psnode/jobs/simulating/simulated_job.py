"""A whole job in virtual time, put together of a master, its workers, the ways between them, and disturbances."""

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

DETECTION = 0.1  # seconds until the master learns of a death, as docs/architecture.md says of ULFM


@dataclass(frozen=True)
class Disturbances:
    """The disturbances of a job. `detection`: seconds from a death until the master knows of it."""

    spread: Spread = Spread()
    standstills: Sequence[Standstill] = ()
    deaths: Sequence[Death] = ()
    detection: float = DETECTION

    def check(self, workers: int) -> None:
        """Raise ConfigurationError if a rank is not that of a worker."""
        for rank in (*(each.rank for each in self.standstills), *(each.rank for each in self.deaths)):
            if not 1 <= rank <= workers:
                raise ConfigurationError(f"--stop and --kill name workers, which are 1 to {workers}, and not rank {rank}")


@dataclass(frozen=True)
class SimulatedJob:
    """The course of a job. `seconds`: until the last version was made, or the job had no worker left.

    `sent`, `received`: by rank, the bytes of gradients and weights on its link. `reports`: by version, those of the workers whose
    gradients are in it. `events`: as in events.jsonl, at virtual times. `spans`: as in timeline.json; empty unless recorded.
    `stop_reason`: None if the job took all steps.
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
        """The seconds of every round."""
        ends = [0.0, *(version.finished for version in self.versions)]
        return [end - begin for begin, end in itertools.pairwise(ends)]

    @property
    def staleness(self) -> Counter[int]:
        """The number of gradients of groups, by the versions between their own and the one to which they were added."""
        return Counter(
            version.number - 1 - gradient.based for version in self.versions for group in version.added for gradient in group
        )

    @property
    def dropped(self) -> int:
        """The frames of gradients that were not used."""
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
    """Return the course of `steps` versions of a job under a scheme of the profile.

    `config`: the rule of consistency and the deadlines; its other settings are not used. `scenario.shared` and `scenario.burst`
    are not modelled. `timeline`: record the spans of all ranks. Raises ConfigurationError for settings that contradict the number
    of workers, and TransportError as the master of such a job would.
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
