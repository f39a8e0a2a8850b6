"""Step times of all candidates in a scenario, and the verdict: compress, or do not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from psnode.config.amounts import milliseconds, proportion
from psnode.jobs.planning.ddp_step import ddp_bytes, ddp_step, sums_of
from psnode.jobs.planning.job_step import job_step
from psnode.jobs.planning.profile import Profile
from psnode.jobs.planning.scenario import Scenario

NEAR = 1.02  # a candidate without loss that takes at most this multiple of the fastest lossy one is preferred
_SLOWEST, _FASTEST = 1e6, 4e11  # bit/s: ends of the range in which the verdict's limit is sought
_HALVINGS = 12
_POWERSGD_UNDER_ADAM = "PowerSGD of rank 4 cost a small GPT under adamw 14 % (docs/results/2026-11-26-ddp-hooks-adamw.md)"
_MANY = 32  # workers above which the limit is not sought, since every evaluation takes long


@dataclass(frozen=True)
class Forecast:
    """A candidate's step in a scenario.

    `seconds`, `spent`, `cores`, `binds`: see psnode.jobs.planning.job_step.StepTime. `sent`: bytes that a worker sends in a step.
    `lossy`, `doubtful`, `accuracy`: see SchemeCosts. `peer`: True for PyTorch's DDP.
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


@dataclass(frozen=True)
class CompressionVerdict:
    """The decision in a scenario.

    `compress`: True if the `best` candidate is lossy, None if nothing was compared. `rival`: the fastest of the other kind.
    `quicker`: candidates that would be faster than `best` but lose too much.
    """

    compress: bool | None
    best: Forecast
    rival: Forecast | None
    quicker: tuple[Forecast, ...]


def forecasts(profile: Profile, scenario: Scenario) -> list[Forecast]:
    """Return the forecasts of DDP with its hooks and of all schemes of the profile, the fastest first."""
    found = [_of_ddp(profile, hook, scenario) for hook in profile.ddp]
    found += [_of_scheme(profile, name, scenario) for name in profile.schemes]
    return sorted(found, key=lambda forecast: forecast.seconds)


def _of_ddp(profile: Profile, hook: str, scenario: Scenario) -> Forecast:
    step = ddp_step(profile, hook, scenario)
    nbytes = round(sum(ddp_bytes(each.nbytes, scenario.workers) for each in sums_of(profile.tensors, hook)))
    lossy = hook.startswith("powersgd")
    doubt = _POWERSGD_UNDER_ADAM if lossy and profile.of_adam else ""
    return Forecast(f"DDP {hook}", step.seconds, step.spent, step.cores, step.binds, nbytes, lossy, bool(doubt), doubt, True)


def _of_scheme(profile: Profile, name: str, scenario: Scenario) -> Forecast:
    costs = profile.schemes[name]
    step = job_step(profile, costs, scenario)
    sent = sum(group.up for group in costs.groups)
    return Forecast(
        name, step.seconds, step.spent, step.cores, step.binds, sent, costs.lossy, costs.doubtful, costs.accuracy
    )  # fmt: skip


def judge(found: Sequence[Forecast]) -> CompressionVerdict:
    """Return the verdict on forecasts of one scenario. A doubtful candidate is never the best."""
    exact = min((each for each in found if not each.lossy), key=_seconds, default=None)
    lossy = min((each for each in found if each.lossy and not each.doubtful), key=_seconds, default=None)
    if exact is None or lossy is None:
        best = exact or lossy or min(found, key=_seconds)
        return CompressionVerdict(None, best, None, _quicker(found, best))
    compress = exact.seconds > NEAR * lossy.seconds
    best, rival = (lossy, exact) if compress else (exact, lossy)
    return CompressionVerdict(compress, best, rival, _quicker(found, best))


def _seconds(forecast: Forecast) -> float:
    return forecast.seconds


def _quicker(found: Sequence[Forecast], best: Forecast) -> tuple[Forecast, ...]:
    return tuple(each for each in found if each.doubtful and NEAR * each.seconds < best.seconds)


def limit_of(profile: Profile, scenario: Scenario) -> float | None:
    """Return the rate of the links, in bit/s, below which the verdict is to compress, found by bisection.

    `scenario.rate` is ignored. None if the verdict is the same at all rates, and for many workers, whose forecasts take long.
    """
    if scenario.workers > _MANY:
        return None

    def pays(rate: float) -> bool:
        return bool(judge(forecasts(profile, replace(scenario, rate=rate))).compress)

    low, high = _SLOWEST, _FASTEST
    if not pays(low) or pays(high):
        return None
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if pays(middle) else (low, middle)
    return math.sqrt(low * high)


def sentences(verdict: CompressionVerdict) -> list[str]:
    """Return the verdict in words."""
    best, rival = verdict.best, verdict.rival
    if rival is None:
        found = [f"{best.name}: {milliseconds(best.seconds)}; nothing to compare it with"]
    elif verdict.compress:
        share = proportion(best.seconds / rival.seconds)
        found = [f"compress: {best.name} takes {milliseconds(best.seconds)}, {share} of the step of {rival.name}"]
        found.append(f"{best.name}: {best.accuracy or 'its loss beside dense is not recorded (docs/choosing.md)'}")
    else:
        coded = f"the fastest scheme with a loss, {rival.name}, {milliseconds(rival.seconds)}"
        found = [f"do not compress: {best.name} takes {milliseconds(best.seconds)}; {coded}"]
        if best.peer:
            found.append("use torch's DistributedDataParallel" + ("" if best.name.endswith("fp32") else " with its hook"))
    return found + [f"{each.name} would take {milliseconds(each.seconds)}, but {each.accuracy}" for each in verdict.quicker]
