"""Forecasts of the step times of all candidates in a scenario, and the verdict whether to compress."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from psnode.config.amounts import milliseconds, proportion
from psnode.jobs.planning.ddp_step import ddp_bytes, ddp_step, sums_of
from psnode.jobs.planning.job_step import StepTime, job_step
from psnode.jobs.planning.profile import Profile, SchemeCosts
from psnode.jobs.planning.routing.folded_step import bytes_sent
from psnode.jobs.planning.routing.route_lines import loads_of
from psnode.jobs.planning.routing.routed_groups import USUAL, fits, routed
from psnode.jobs.planning.routing.routed_step import TooLargeError, is_small, routed_step
from psnode.jobs.planning.scenario import Scenario
from psnode.plans.prediction import NEAR

_SLOWEST, _FASTEST = 1e6, 4e11  # bit/s: ends of the range in which the verdict's limit is sought
_HALVINGS = 12
_POWERSGD_UNDER_ADAM = "PowerSGD of rank 4 cost a small GPT under adamw 13 % (docs/results/2026-11-30-ddp-hooks-adamw.md)"
_MANY = 32  # with more workers the limit is not sought, since forecasts take too long
_MANY_ELSEWHERE = 5  # the same number if another topology than the usual one is predicted


@dataclass(frozen=True)
class Forecast:
    """The predicted step of a candidate in a scenario, under the setting `topology`.

    A candidate is a scheme of psnode or a hook of DDP. `seconds`, `spent`, `cores`, `binds`: see
    psnode.jobs.planning.job_step.StepTime. `sent`: bytes that a worker sends in a step, including the weights that it
    updates. `lossy`, `doubtful`, `accuracy`: see SchemeCosts. `peer`: True for a hook of PyTorch's DDP.
    """

    name: str
    seconds: float
    spent: dict[str, float]
    cores: float
    binds: str
    sent: int
    lossy: bool = False
    doubtful: bool = False
    accuracy: str = ""
    peer: bool = False
    topology: str = USUAL

    @property
    def label(self) -> str:
        """The name to show to people. It includes the topology, unless this is the default topology USUAL."""
        return self.name if self.topology == USUAL else f"{self.name} under --topology {self.topology}"


@dataclass(frozen=True)
class CompressionVerdict:
    """The decision whether to compress in a scenario.

    `compress`: True if the `best` candidate is lossy, False if it is not, None if there was nothing to compare. `rival`: the
    fastest candidate of the opposite kind (lossy or without loss). `quicker`: doubtful candidates that would be faster than
    `best`.
    """

    compress: bool | None
    best: Forecast
    rival: Forecast | None
    quicker: tuple[Forecast, ...]


def forecasts(
    profile: Profile, scenario: Scenario, topologies: Sequence[str] = (USUAL,), schemes: Collection[str] | None = None
) -> list[Forecast]:
    """Return the forecasts of DDP with its hooks and of the profile's schemes, the fastest first.

    `schemes`: the names of the schemes; None for all. Every scheme is predicted under each of `topologies` under which
    train accepts it. If there are several topologies, those under which a step has too many frames are left out. If there
    is only one, ConfigurationError is raised if its step has too many frames, or if train refuses all schemes under it.
    Also raises the errors of psnode.jobs.planning.routing.routed_groups.routed.
    """
    found = [_of_ddp(profile, hook, scenario) for hook in profile.ddp]
    asked = [name for name in profile.schemes if schemes is None or name in schemes]
    for topology in topologies:
        names = [name for name in asked if fits(profile, name, topology)]
        names = asked if len(topologies) == 1 and not names else names
        try:
            found += [_of_scheme(profile, name, scenario, topology) for name in names]
        except TooLargeError:
            if len(topologies) == 1:
                raise
    return sorted(found, key=lambda forecast: forecast.seconds)


def left_out(profile: Profile, topologies: Sequence[str], found: Sequence[Forecast]) -> dict[str, list[str]]:
    """Return, for each topology, the schemes that have no forecast in `found`. A topology whose schemes all have one is left out.

    A scheme has no forecast if train refuses it under the topology, or if its step has too many frames to predict.
    """
    there = {(row.name, row.topology) for row in found}
    missing = {topology: [name for name in profile.schemes if (name, topology) not in there] for topology in topologies}
    return {topology: names for topology, names in missing.items() if names}


def _of_ddp(profile: Profile, hook: str, scenario: Scenario) -> Forecast:
    step = ddp_step(profile, hook, scenario)
    nbytes = round(sum(ddp_bytes(each.nbytes, scenario.workers) for each in sums_of(profile.tensors, hook)))
    lossy = hook.startswith("powersgd")
    doubt = _POWERSGD_UNDER_ADAM if lossy and profile.of_adam else ""
    return Forecast(f"DDP {hook}", step.seconds, step.spent, step.cores, step.binds, nbytes, lossy, bool(doubt), doubt, True)


def _of_scheme(profile: Profile, name: str, scenario: Scenario, topology: str) -> Forecast:
    if topology == USUAL:  # uses the measured costs, also of profiles of earlier versions, which contain no plans
        costs = profile.schemes[name]
        return _forecast(name, job_step(profile, costs, scenario), sum(group.up for group in costs.groups), costs, topology)
    groups = routed(profile, name, topology, scenario.workers)
    step = routed_step(profile, groups, scenario, topology)
    if is_small(groups):
        sent = max(load.sent for load in loads_of(groups) if load.rank in groups.layout.computing)
    else:
        sent = max(bytes_sent(groups, groups.layout.computing[place]) for place in (0, -1))
    return _forecast(name, step, sent, groups.costs, topology)


def _forecast(name: str, step: StepTime, sent: int, costs: SchemeCosts, topology: str) -> Forecast:
    return Forecast(
        name, step.seconds, step.spent, step.cores, step.binds, sent, costs.lossy, costs.doubtful, costs.accuracy,
        topology=topology,
    )  # fmt: skip


def judge(found: Sequence[Forecast]) -> CompressionVerdict:
    """Return the verdict on forecasts of one scenario.

    A doubtful lossy candidate is the best one only if there is no other candidate. The best scheme is shown under the usual
    topology if its step then takes at most NEAR times as long as under its fastest topology. NEAR is slightly above 1.
    """
    exact = min((each for each in found if not each.lossy), key=_seconds, default=None)
    lossy = min((each for each in found if each.lossy and not each.doubtful), key=_seconds, default=None)
    if exact is None or lossy is None:
        best = usual(found, exact or lossy or min(found, key=_seconds))
        return CompressionVerdict(None, best, None, _quicker(found, best))
    compress = exact.seconds > NEAR * lossy.seconds
    best, rival = (lossy, exact) if compress else (exact, lossy)
    best = usual(found, best)
    return CompressionVerdict(compress, best, rival, _quicker(found, best))


def usual(found: Sequence[Forecast], best: Forecast) -> Forecast:
    """Return the forecast of the scheme of `best` under the usual topology, if it takes at most NEAR times as long as `best`.

    Otherwise return `best`. NEAR is slightly above 1.
    """
    near = (each for each in found if each.name == best.name and each.topology == USUAL and each.seconds <= NEAR * best.seconds)
    return next(near, best)


def _seconds(forecast: Forecast) -> float:
    return forecast.seconds


def _quicker(found: Sequence[Forecast], best: Forecast) -> tuple[Forecast, ...]:
    """Return the doubtful candidates that would be faster than `best` by more than the factor NEAR.

    Each of them is returned under its fastest topology. NEAR is slightly above 1.
    """
    fastest = {each.name: each for each in sorted(found, key=_seconds, reverse=True)}
    return tuple(each for each in found if each is fastest[each.name] and each.doubtful and NEAR * each.seconds < best.seconds)


def topology_sentences(found: Sequence[Forecast], verdict: CompressionVerdict) -> list[str]:
    """Return a line that names the --topology flag of psnode's best candidate, and its step times under the other topologies.

    The result is empty if only one topology was compared.
    """
    able = [each for each in found if not each.peer and not each.doubtful]
    if not able or len({each.topology for each in found if not each.peer}) < 2:
        return []
    best = verdict.best if verdict.best in able else usual(able, min(able, key=_seconds))
    others = [each for each in able if each.name == best.name and each.topology != best.topology]
    beside = "".join(f"; {milliseconds(each.seconds)} with --topology {each.topology}" for each in others)
    return [f"{best.name} takes {milliseconds(best.seconds)} with --topology {best.topology} of psnode train{beside}"]


def limit_of(profile: Profile, scenario: Scenario, topologies: Sequence[str] = (USUAL,)) -> float | None:
    """Return the rate of the links, in bit/s, below which the verdict says to compress. It is found by bisection.

    `scenario.rate` is ignored. Returns None if the verdict does not change between the slowest and the fastest rate. Also
    returns None for a large number of workers, because their forecasts would take too long.
    """
    if scenario.workers > (_MANY if tuple(topologies) == (USUAL,) else _MANY_ELSEWHERE):
        return None

    def pays(rate: float) -> bool:
        return bool(judge(forecasts(profile, replace(scenario, rate=rate), topologies)).compress)

    low, high = _SLOWEST, _FASTEST
    if not pays(low) or pays(high):
        return None
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if pays(middle) else (low, middle)
    return math.sqrt(low * high)


def sentences(verdict: CompressionVerdict) -> list[str]:
    """Return the verdict as sentences."""
    best, rival = verdict.best, verdict.rival
    if rival is None:
        found = [f"{best.label}: {milliseconds(best.seconds)}; nothing to compare it with"]
    elif verdict.compress:
        share = proportion(best.seconds / rival.seconds)
        found = [f"compress: {best.label} takes {milliseconds(best.seconds)}, {share} of the step of {rival.label}"]
        found.append(f"{best.label}: {best.accuracy or 'its loss beside dense is not recorded (docs/choosing.md)'}")
    else:
        coded = f"the fastest scheme with a loss, {rival.label}, {milliseconds(rival.seconds)}"
        found = [f"do not compress: {best.label} takes {milliseconds(best.seconds)}; {coded}"]
        if best.peer:
            found.append("use torch's DistributedDataParallel" + ("" if best.name.endswith("fp32") else " with its hook"))
    return found + [f"{each.label} would take {milliseconds(each.seconds)}, but {each.accuracy}" for each in verdict.quicker]
