"""Predicted steps of a job that is about to begin, under several topologies, from a measurement on the host of rank 0."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from dataclasses import replace

from psnode.config import Config
from psnode.config.names import DENSE
from psnode.config.train_settings import BY_RULE, UNDECIDED
from psnode.errors import ConfigurationError, in_one_line
from psnode.jobs.planning.compared import compared, scheme_name
from psnode.jobs.planning.forecast import forecasts
from psnode.jobs.planning.profile import Profile
from psnode.jobs.planning.profiling import measure
from psnode.jobs.planning.routing.routed_groups import USUAL
from psnode.jobs.planning.scenario import GOODPUT, Scenario
from psnode.master.start.decision import JobHosts, slower_way
from psnode.plans.prediction import Prediction
from psnode.task import Task

_LOG = logging.getLogger(__name__)
SOURCE = f"--topology {UNDECIDED}"


def predicted(config: Config, task: Task, topologies: Sequence[str], hosts: JobHosts) -> dict[str, Prediction]:
    """Return, for each topology, the predicted step of a job with `config` on `hosts`.

    The passes of `task` and the coding of its gradients are measured in this process, with the number of threads in `config`.
    A topology whose step has too many frames to predict is left out. Raises ConfigurationError if the step cannot be
    measured.
    """
    try:
        profile = _profile(config, task)
    except Exception as error:  # may come from the task, for example if its data are not on this host
        raise ConfigurationError(
            f"{SOURCE} measures a step on the host of rank 0, which failed ({in_one_line(error)}): name a topology"
        ) from error
    return steps(profile, scheme_name(config), topologies, scenario_of(hosts))


def steps(profile: Profile, name: str, topologies: Sequence[str], scenario: Scenario) -> dict[str, Prediction]:
    """Return, for each topology, the predicted step of the scheme `name` of a profile."""
    rows = [row for row in forecasts(profile, scenario, topologies, (name,)) if not row.peer]
    found = {row.topology: Prediction(row.seconds, scenario.workers, SOURCE, row.binds) for row in rows}
    return {topology: found[topology] for topology in topologies if topology in found}


def scenario_of(hosts: JobHosts) -> Scenario:
    """Return the scenario of a job on `hosts`. All of its workers get the rate of the slowest link that was measured."""
    if hosts.links is None or hosts.slowest is None:
        return Scenario(hosts.workers, None, 0.0, hosts.cores, hosts.shared)
    rate, master_rate = (8 * slower_way(each) / GOODPUT for each in (hosts.slowest, hosts.links))
    return Scenario(hosts.workers, rate, hosts.links.round_trip, hosts.cores, hosts.shared, master_rate=master_rate)


def _profile(config: Config, task: Task) -> Profile:
    """Measure the run's scheme, and the scheme dense. If weights are not sent, workers update them at the cost of dense."""
    import torch

    base = replace(
        config, topology=USUAL, plan=BY_RULE, local=None, overlap=True, init_from=None, new_head=False, log_to=()
    )  # the measured worker and its master are in one process
    schemes = {scheme_name(base): base}
    with contextlib.suppress(ConfigurationError):  # dense may not have the settings of the run
        schemes = {name: each for name, each in compared(base, (DENSE,)).items() if name in (*schemes, DENSE)}
    with torch.random.fork_rng(devices=()):
        return measure(base, schemes, lambda line: _LOG.debug("measuring %s", line), task=task, in_job=True)
