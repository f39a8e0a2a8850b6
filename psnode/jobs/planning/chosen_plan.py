"""The plan file for the scheme that a verdict chooses."""

from __future__ import annotations

from collections.abc import Sequence

from psnode.errors import ConfigurationError
from psnode.jobs.planning.forecast import CompressionVerdict, Forecast, sentences, usual
from psnode.jobs.planning.job_step import step_spans
from psnode.jobs.planning.profile import Profile
from psnode.jobs.planning.routing.routed_groups import USUAL, routed
from psnode.jobs.planning.routing.routed_step import is_small
from psnode.jobs.planning.scenario import Scenario
from psnode.plans.plan_file import PlanFile
from psnode.plans.prediction import Prediction


def chosen(rows: Sequence[Forecast], verdict: CompressionVerdict) -> Forecast:
    """Return the candidate with the verdict's scheme if psnode can run it, otherwise the fastest other candidate without a doubt.

    Raises ConfigurationError if there is no such candidate.
    """
    able = [row for row in rows if not row.peer and not row.doubtful]
    if not able:
        raise ConfigurationError("the record of losses speaks against every scheme that was compared: add a --scheme")
    return verdict.best if verdict.best in able else usual(able, min(able, key=lambda row: row.seconds))


def plan_file(profile: Profile, row: Forecast, verdict: CompressionVerdict, scenario: Scenario, source: str) -> PlanFile:
    """Return the plan file of a forecast in a scenario. `source`: the origin of the prediction, as text for people.

    The prediction of a step with very many frames has no spans. Raises ConfigurationError if the profile is of an earlier
    version, which kept no plans.
    """
    costs = profile.schemes[row.name]
    told = [f"{row.label}, of {profile.model}", *sentences(verdict)]
    groups = routed(profile, row.name, row.topology, scenario.workers)
    if row.topology == USUAL:  # the measured costs, as in its forecast
        spans = step_spans(profile, costs, scenario)
    else:
        spans = step_spans(profile, groups.costs, scenario, groups.routes) if is_small(groups) else ()
    prediction = Prediction(row.seconds, scenario.workers, source, row.binds, spans)
    return PlanFile(groups.plan, costs.settings, prediction, tuple(told), row.topology)
