"""A profile that is refitted to a finished run, and the rate of links that explains the run's steps.

The following costs are taken from the run, as medians over its steps:

* the passes under all schemes. All of their times are multiplied by one factor. The time to load weights is multiplied by
  this factor too, since the run's seconds of passes include it;
* coding, decoding and updates of the run's own scheme. If another scheme is lossy too, or if both are not, its times are
  multiplied by the same factors, as if the host were faster or slower;
* the bytes of the run's own scheme, in the directions in which the run sends any.

If weights are not sent, every worker updates them as under the scheme dense, so the updates of dense get the factor.

Everything else stays as measured: the bytes of other schemes, the seconds that DDP adds, the seconds of its optimizer, the
costs of messages and of their bytes, the spread of the durations of passes, and the work of master and workers that belongs
to no group. The run's seconds of passes are means over its workers, so they are compared with the mean duration.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from psnode.config import Config
from psnode.config.names import DENSE, names_codec_file
from psnode.config.resolve import resolve
from psnode.errors import ConfigurationError, PsnodeError
from psnode.jobs.planning.job_step import job_step
from psnode.jobs.planning.profile import FixedCosts, GroupCosts, Profile, SchemeCosts, waiting
from psnode.jobs.planning.refitting.finished_run import FinishedRun, StepFigures
from psnode.jobs.planning.refitting.recorded_loads import COSTS, RecordedLoads
from psnode.jobs.planning.routing.planned_costs import on_plan
from psnode.jobs.planning.routing.routed_groups import USUAL, RoutedGroups, on_routes
from psnode.jobs.planning.routing.routed_step import routed_step
from psnode.jobs.planning.scenario import GOODPUT, Scenario
from psnode.plans.groups import Plan
from psnode.plans.plan_file import stated_settings

_SLOWEST, _FASTEST = 1e5, 4e11  # bit/s: ends of the range in which a rate is sought
_HALVINGS = 18
_BYTES = ("up", "down")
_OF_GRADIENTS = ("codec", "feedback", "aggregator")
_OF_A_SCHEME = (*_OF_GRADIENTS, "downlink", "downlink_lead")
# possible origins of a rate
GIVEN, MEASURED, FITTED, FREE, UNKNOWN = "given", "measured", "fitted", "free", "unknown"


@dataclass(frozen=True)
class ProfileRefit:
    """A `profile` that is refitted to the figures of `run`. `name`: the scheme of the run.

    `scenario`: the scenario of the run. `origin`: the source of the rate in the scenario. The rate is GIVEN by the user,
    MEASURED by the run, or FITTED to the steps of the run. It is FREE if links do not limit the steps, and UNKNOWN if all
    ranks share a host, since waits for cores then look like waits for links. `predicted`, `refitted`: the figures of a step
    in this scenario, according to the original profile and to `profile`.
    """

    run: FinishedRun
    name: str
    scenario: Scenario
    origin: str
    predicted: StepFigures
    refitted: StepFigures
    profile: Profile


def refit(profile: Profile, run: FinishedRun, scenario: Scenario, *, given: bool) -> ProfileRefit:
    """Return `profile` refitted to the figures of `run`.

    `scenario`: the scenario of the run. Its rate is used if `given` is True. Otherwise the rate is that of the links if the
    run has measured them. If not, it is the rate at which a predicted step takes the measured time. It is None if
    this rate does not exist, and if all ranks shared a host and measured no links. Raises ConfigurationError if the run
    trained another model, or used a scheme that is not in the profile.
    """
    _check_model(profile, run.plan)
    if not run.config.overlap:
        profile = waiting(profile)
    name = scheme_in(profile, run)
    before = profile
    if run.config.topology == USUAL:  # under other topologies the groups follow from the number of workers
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
        found = fitted_rate(after, name, scenario, run)
        origin, scenario = FREE if found is None else FITTED, replace(scenario, rate=found)
    return ProfileRefit(
        run, name, scenario, origin, figures(before, name, scenario, run), figures(after, name, scenario, run), after
    )  # fmt: skip


def figures(profile: Profile, name: str, scenario: Scenario, run: FinishedRun) -> StepFigures:
    """Return the predicted figures of a step of `run` in a scenario. `name`: the scheme of the run in the profile."""
    groups = _on_run(profile, name, run)
    loads = RecordedLoads(groups.routes, run.layout)
    return StepFigures(
        _seconds(profile, name, scenario, run), profile.passes * profile.host.mean_duration + sum(_column(groups.costs, "apply")),
        **{figure: loads.figure(figure, _column(groups.costs, cost)) for figure, cost in COSTS.items()},
    )  # fmt: skip


def _on_run(profile: Profile, name: str, run: FinishedRun) -> RoutedGroups:
    """Return the groups of the run's plan, with the costs of the scheme `name` in the profile, on the routes of the run."""
    return on_routes(profile, on_plan(profile, profile.schemes[name], run.plan), run.plan, run.config.topology, run.layout)


def _column(costs: SchemeCosts, name: str) -> list[float]:
    return [getattr(group, name) for group in costs.groups]


def _seconds(profile: Profile, name: str, scenario: Scenario, run: FinishedRun) -> float:
    """Return the predicted seconds of a step of the run."""
    if run.config.topology == USUAL:
        return job_step(profile, profile.schemes[name], scenario).seconds
    return routed_step(profile, _on_run(profile, name, run), scenario, run.config.topology).seconds


def with_figures(profile: Profile, name: str, run: FinishedRun) -> Profile:
    """Return the profile changed by the measured figures of `run`. `name`: the scheme of the run in the profile.

    The costs of this scheme are multiplied by factors: measured figures divided by predicted ones. The factors also apply
    to groups that the run does not have. If a predicted figure is 0, the measured one is divided among groups in
    proportion to their coordinates. For the passes and the other schemes see this module's docstring.
    """
    costs, groups = profile.schemes[name], _on_run(profile, name, run)
    loads = RecordedLoads(groups.routes, run.layout)
    slower = run.measured.passes / (profile.passes * profile.host.mean_duration + sum(_column(groups.costs, "apply")))
    ratios, by_coordinate = dict[str, float](), dict[str, float]()
    for figure, cost in COSTS.items():
        measured, predicted = float(getattr(run.measured, figure)), loads.figure(figure, _column(groups.costs, cost))
        if predicted > 0:
            ratios[cost] = measured / predicted
        elif (whole := loads.figure(figure, groups.sizes)) > 0:
            by_coordinate[cost] = measured / whole
    updater = name if run.config.sends_weights or DENSE not in profile.schemes else DENSE
    sizes = [group.size for group in Plan.from_dict(costs.plan).groups]

    def own(place: int, group: GroupCosts) -> dict[str, Any]:
        found = {key: ratio * getattr(group, key) for key, ratio in ratios.items()}
        found |= {key: each * sizes[place] for key, each in by_coordinate.items()}
        kept = {key: round(each) if key in _BYTES else each for key, each in found.items()}
        return kept if updater == name else {key: each for key, each in kept.items() if key != "update"}

    def scaled(*keys: str) -> Callable[[int, GroupCosts], dict[str, Any]]:
        return lambda place, group: {key: (ratios.get(key) or 1.0) * getattr(group, key) for key in keys}

    schemes = {}
    for key, each in profile.schemes.items():
        change: Callable[[int, GroupCosts], dict[str, Any]] = own
        if key != name:
            coding = ("encode", "decode") if each.lossy == costs.lossy else ()
            updates = ("update",) if (key == updater if updater != name else each.lossy == costs.lossy) else ()
            change = scaled(*coding, *updates)
        groups_now = _changed(each.groups, slower, change)
        schemes[key] = replace(each, groups=groups_now, fixed=_in_proportion(each.fixed, each.groups, groups_now))
    tensors = tuple(replace(tensor, ready=slower * tensor.ready, needed=slower * tensor.needed) for tensor in profile.tensors)
    return replace(
        profile, forward=slower * profile.forward, backward=slower * profile.backward, tensors=tensors, schemes=schemes
    )  # fmt: skip


def _changed(
    groups: Sequence[GroupCosts], slower: float, change: Callable[[int, GroupCosts], dict[str, Any]]
) -> tuple[GroupCosts, ...]:
    """Return the groups, changed so that their passes take `slower` times as long.

    `change`: a function that returns further changed costs of a group, by name.
    """
    return tuple(
        replace(
            group, ready=slower * group.ready, needed=slower * group.needed, apply=slower * group.apply, **change(place, group)
        )
        for place, group in enumerate(groups)
    )  # fmt: skip


def _in_proportion(fixed: FixedCosts, before: Sequence[GroupCosts], after: Sequence[GroupCosts]) -> FixedCosts:
    """Return the fixed costs, changed by the same factors as the sums of the costs of groups."""

    def factor(key: str) -> float:
        was = sum(getattr(group, key) for group in before)
        return float(sum(getattr(group, key) for group in after) / was) if was else 1.0

    return FixedCosts(**{key: factor(key) * cost for key, cost in asdict(fixed).items()})


def _check_model(profile: Profile, plan: Plan) -> None:
    """Raise ConfigurationError unless the profile is of a model with the tensors of the plan."""
    names = {tensor.name for tensor in profile.tensors}
    if len(names) < len(profile.tensors) or "" in names:
        raise ConfigurationError("this profile does not name its tensors, since an earlier version wrote it: measure again")
    if problem := plan.difference({tensor.name: tensor.shape for tensor in profile.tensors}):
        raise ConfigurationError(
            f"the run is of another model than the profile of {profile.model}: {problem}; measure a profile of its own"
        )


def scheme_in(profile: Profile, run: FinishedRun) -> str:
    """Return the name under which the profile contains the run's scheme.

    A codec in a file is compared by its name, and the file is not executed. Raises ConfigurationError if the profile does not
    have the scheme, or contains no plans.
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
        own = resolve(Config(**costs.settings, optimizer=run.config.optimizer))
    except (PsnodeError, TypeError, ValueError):
        return False
    sent = run.config.sends_weights
    return all(getattr(own, field) == getattr(run.scheme, field) for field in (_OF_A_SCHEME if sent else _OF_GRADIENTS))


def fitted_rate(profile: Profile, name: str, scenario: Scenario, run: FinishedRun) -> float | None:
    """Return the rate of links, in bit/s, at which a predicted step takes as long as in the run. It is found by bisection.

    Returns None if there is no such rate: if the step is longer than the measured one even on the fastest links, or not
    longer even on the slowest.
    """

    def longer(rate: float) -> bool:
        return _seconds(profile, name, replace(scenario, rate=rate), run) > run.measured.step

    low, high = _SLOWEST, _FASTEST
    if longer(high) or not longer(low):
        return None
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if longer(middle) else (low, middle)
    return math.sqrt(low * high)
