"""The plan file of the scheme that a verdict chooses for a run."""

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
    """Return the candidate for the plan file: the best one of the verdict, if it is not DDP and not doubtful.

    Otherwise it is the fastest of psnode's candidates that are not doubtful. Raises ConfigurationError if all of them are
    doubtful.
    """
    able = [row for row in rows if not row.peer and not row.doubtful]
    if not able:
        raise ConfigurationError("the record of losses speaks against every scheme that was compared: add a --scheme")
    return verdict.best if verdict.best in able else usual(able, min(able, key=lambda row: row.seconds))


def plan_file(profile: Profile, row: Forecast, verdict: CompressionVerdict, scenario: Scenario, source: str) -> PlanFile:
    """Return the plan file of the forecast `row` in a scenario. `source`: a text that tells users the prediction's origin.

    If the step has too many frames, its prediction in the file has no spans. Raises ConfigurationError if an earlier version
    of psnode wrote the profile, because such profiles contain no plans.
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
