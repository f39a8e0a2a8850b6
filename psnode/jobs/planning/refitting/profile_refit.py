"""A profile with the figures of a finished run, and the rate of links that explains the run's steps.

The run determines, as medians over its steps,

* the passes under all schemes. Their times are multiplied by one factor, and so is the loading of weights, since the run's
  seconds of passes include it;
* coding, decoding and updates of its own scheme. Those of another scheme are multiplied by the same factors, as on a faster or
  slower host, if both schemes are lossy or both are not;
* the bytes of its own scheme, in both directions.

Everything else stays as measured: the bytes of other schemes, the seconds that DDP adds, the seconds of its optimizer, the prices
of messages and of their bytes, and the work of master and workers that belongs to no group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from psnode.config import Config
from psnode.config.names import names_codec_file
from psnode.config.resolve import resolve
from psnode.errors import ConfigurationError, PsnodeError
from psnode.jobs.planning.job_step import job_step
from psnode.jobs.planning.profile import GroupCosts, Profile, SchemeCosts, waiting
from psnode.jobs.planning.refitting.finished_run import FinishedRun, StepFigures
from psnode.jobs.planning.routing.planned_costs import on_plan
from psnode.jobs.planning.scenario import GOODPUT, Scenario
from psnode.plans.groups import Plan
from psnode.plans.plan_file import stated_settings

_SLOWEST, _FASTEST = 1e5, 4e11  # bit/s: ends of the range in which a rate is sought
_HALVINGS = 18
_OF_A_SCHEME = ("codec", "feedback", "aggregator", "downlink", "downlink_lead")
# possible origins of a rate
GIVEN, MEASURED, FITTED, FREE, UNKNOWN = "given", "measured", "fitted", "free", "unknown"


@dataclass(frozen=True)
class ProfileRefit:
    """A profile with the figures of `run`. `name`: the scheme of the run.

    `scenario`: the scenario of the run. `origin` of its rate: GIVEN by the user, MEASURED by the run, FITTED to the steps of the
    run, FREE if links do not limit the steps, or UNKNOWN if all ranks share a host, since waits for cores then look like waits
    for links. `predicted`, `refitted`: the figures of a step in this scenario according to the original profile and to `profile`.
    """

    run: FinishedRun
    name: str
    scenario: Scenario
    origin: str
    predicted: StepFigures
    refitted: StepFigures
    profile: Profile


def refit(profile: Profile, run: FinishedRun, scenario: Scenario, *, given: bool) -> ProfileRefit:
    """Return `profile` with the figures of `run`.

    `scenario`: the scenario of the run. Its rate is used if `given`. Otherwise the rate is that of the links if the run measured
    them, or else the rate at which a step takes the measured time. Raises ConfigurationError if the run trained another model, or
    used a scheme that is not in the profile.
    """
    _check_model(profile, run.plan)
    if not run.config.overlap:
        profile = waiting(profile)
    name = scheme_in(profile, run)
    before = replace(profile, schemes={**profile.schemes, name: on_plan(profile, profile.schemes[name], run.plan)})
    after = with_figures(before, name, run)
    if given:
        origin = GIVEN
    elif run.links is not None:
        origin, rate = MEASURED, 8 * min(run.links.up, run.links.down) / GOODPUT
        scenario = replace(scenario, rate=rate)
    elif run.crowded:
        origin, scenario = UNKNOWN, replace(scenario, rate=None)
    else:
        found = fitted_rate(after, name, scenario, run.measured.step)
        origin, scenario = FREE if found is None else FITTED, replace(scenario, rate=found)
    return ProfileRefit(
        run, name, scenario, origin, figures(before, name, scenario), figures(after, name, scenario), after
    )  # fmt: skip


def figures(profile: Profile, name: str, scenario: Scenario) -> StepFigures:
    """Return the figures of a step under the scheme `name` of the profile."""
    costs = profile.schemes[name]

    def total(cost: str) -> float:
        return float(sum(getattr(group, cost) for group in costs.groups))

    return StepFigures(
        job_step(profile, costs, scenario).seconds, profile.passes + total("apply"), total("encode"),
        scenario.workers * total("decode"), total("update"), total("up"), total("down"),
    )  # fmt: skip


def with_figures(profile: Profile, name: str, run: FinishedRun) -> Profile:
    """Return the profile with the measured figures of `run`.

    `name`: the scheme of the run in the profile. It must have the groups of the run's plan.
    """
    costs, measured = profile.schemes[name], run.measured
    slower = measured.passes / (profile.passes + sum(group.apply for group in costs.groups))
    totals = {
        "encode": measured.encode, "decode": measured.decode / run.workers, "update": measured.update, "up": measured.sent,
        "down": measured.received,
    }  # fmt: skip
    sizes = [group.size for group in run.plan.groups]
    columns = {key: _spread([getattr(group, key) for group in costs.groups], total, sizes) for key, total in totals.items()}
    ratios = {
        key: _ratio(totals[key], sum(getattr(group, key) for group in costs.groups)) for key in ("encode", "decode", "update")
    }

    def own(place: int, group: GroupCosts) -> dict[str, Any]:
        return {key: round(each[place]) if key in ("up", "down") else each[place] for key, each in columns.items()}

    def alike(place: int, group: GroupCosts) -> dict[str, Any]:
        return {key: ratio * getattr(group, key) for key, ratio in ratios.items()}

    def unlike(place: int, group: GroupCosts) -> dict[str, Any]:
        return {}

    schemes = {}
    for key, each in profile.schemes.items():
        change = own if key == name else alike if each.lossy == costs.lossy else unlike
        schemes[key] = replace(each, groups=_changed(each.groups, slower, change))
    tensors = tuple(replace(tensor, ready=slower * tensor.ready, needed=slower * tensor.needed) for tensor in profile.tensors)
    return replace(
        profile, forward=slower * profile.forward, backward=slower * profile.backward, tensors=tensors, schemes=schemes
    )  # fmt: skip


def _changed(
    groups: Sequence[GroupCosts], slower: float, change: Callable[[int, GroupCosts], dict[str, Any]]
) -> tuple[GroupCosts, ...]:
    """Return groups whose passes take `slower` times as long, with the changed costs that `change` returns by name."""
    return tuple(
        replace(
            group, ready=slower * group.ready, needed=slower * group.needed, apply=slower * group.apply, **change(place, group)
        )
        for place, group in enumerate(groups)
    )  # fmt: skip


def _spread(costs: Sequence[float], total: float, sizes: Sequence[int]) -> list[float]:
    """Return costs with the sum `total` in the proportions of `costs`, or of `sizes` if all `costs` are 0."""
    weights = costs if sum(costs) > 0 else sizes
    return [total * weight / sum(weights) for weight in weights]


def _ratio(measured: float, predicted: float) -> float:
    return measured / predicted if measured > 0 and predicted > 0 else 1.0


def _check_model(profile: Profile, plan: Plan) -> None:
    """Raise ConfigurationError unless the profile has the tensors of the plan."""
    names = {tensor.name for tensor in profile.tensors}
    if len(names) < len(profile.tensors) or "" in names:
        raise ConfigurationError("this profile does not name its tensors, since an earlier version wrote it: measure again")
    if problem := plan.difference({tensor.name: tensor.shape for tensor in profile.tensors}):
        raise ConfigurationError(
            f"the run is of another model than the profile of {profile.model}: {problem}; measure a profile of its own"
        )


def scheme_in(profile: Profile, run: FinishedRun) -> str:
    """Return the name of the run's scheme in the profile.

    Codecs in files are not executed, but compared by name. Raises ConfigurationError if the profile does not have the scheme, or
    contains no plans.
    """
    stated = stated_settings(run.config)
    found = next((name for name, costs in profile.schemes.items() if dict(costs.settings) == stated), None)
    if found is None:
        found = next((name for name, costs in profile.schemes.items() if _is_of(costs, run)), None)
    if found is None:
        known = ", ".join(map(repr, profile.schemes))
        raise ConfigurationError(
            f"the run's scheme is {run.scheme.name} with {run.scheme.codec}, and the profile has {known}: measure a profile "
            "with the run's options"
        )
    if not profile.schemes[found].plan:
        raise ConfigurationError("this profile holds no plans, since an earlier version wrote it: measure again")
    return found


def _is_of(costs: SchemeCosts, run: FinishedRun) -> bool:
    if not costs.settings or names_codec_file(costs.settings.get("codec")):
        return False
    try:
        own = resolve(Config(**costs.settings))
    except (PsnodeError, TypeError, ValueError):
        return False
    return all(getattr(own, field) == getattr(run.scheme, field) for field in _OF_A_SCHEME)


def fitted_rate(profile: Profile, name: str, scenario: Scenario, seconds: float) -> float | None:
    """Return the rate of links, in bit/s, at which a step takes `seconds`. It is found by bisection.

    Returns None if a step takes at least as long on the fastest links, or no longer even on the slowest.
    """
    costs = profile.schemes[name]

    def longer(rate: float) -> bool:
        return job_step(profile, costs, replace(scenario, rate=rate)).seconds > seconds

    low, high = _SLOWEST, _FASTEST
    if longer(high) or not longer(low):
        return None
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if longer(middle) else (low, middle)
    return math.sqrt(low * high)
