"""Rehearsals of groupings: real steps of a worker and its master on this host, with the groups that were simulated as quickest.

A search prices groupings by curves, which are fitted to a few measured groupings. In a rehearsal the work on a grouping's own
groups is measured, and its step is simulated again with these costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from psnode.config import Config
from psnode.config.amounts import milliseconds
from psnode.config.plain_json import to_json
from psnode.errors import ConfigurationError
from psnode.jobs.planning.profiling import measure
from psnode.jobs.planning.search.plan_search import PlanSearch
from psnode.jobs.planning.search.ways import RULE, Way, Ways
from psnode.plans.groups import Plan
from psnode.plans.prediction import NEAR

_MOST = 3  # maximum number of ways that are rehearsed besides that of the rule


def rehearse(search: PlanSearch, ways: Ways, listed: Sequence[Way], tell: Callable[[str], None] = lambda line: None) -> list[Way]:
    """Return the first ways of `listed`, and that of the rule, with measured costs, in the order of `listed`.

    Besides the rule's way there are at most _MOST ways. Ways whose plan is that of an earlier one, or one that a run of the
    search's scheme cannot follow, are left out. `listed`: the quickest first. `tell` is called with the name of what is
    measured next. No plan is measured twice in the same search.
    """
    chosen, plans, settings = dict[str, Way](), dict[str, Plan](), dict[str, Config]()
    for way in listed:
        plan = ways.plan(way)
        key = to_json(plan.to_dict())
        if key in plans or (len(chosen) >= _MOST and way.name != RULE):
            continue
        try:
            settings[key] = search.settings_of(plan)
        except ConfigurationError:
            continue
        chosen[key], plans[key] = way, plan
    if new := {key: each for key, each in settings.items() if key not in search.rehearsed}:
        names = {chosen[key].name: key for key in new}
        found = measure(
            search.config, {name: new[key] for name, key in names.items()}, tell, ranks=search.ranks, host=ways.profile.host,
            plans={name: plans[key] for name, key in names.items()},
        ).schemes  # fmt: skip
        search.rehearsed.update({key: found[name] for name, key in names.items()})
    return [ways.priced(way, search.rehearsed[key]) for key, way in chosen.items()]


def quickest(found: Sequence[Way]) -> Way:
    """Return the first of the rehearsed ways whose step takes at most NEAR times as long as the shortest one.

    NEAR is slightly above 1, so that a small error of measurement does not overturn the order of the simulated steps.
    """
    least = min(way.step.seconds for way in found)
    return next(way for way in found if way.step.seconds <= NEAR * least)


def rehearsal_table(found: Sequence[Way], listed: Sequence[Way]) -> list[str]:
    """Return the lines of a table of rehearsed ways, after an empty line. `listed`: the ways before their rehearsal."""
    before = {way.name: way.step.seconds for way in listed}
    lines = ["", f"{'rehearsed on this host':28}{'step':>10}{'before':>10}"]
    return lines + [f"  {way.name:26}{milliseconds(way.step.seconds):>10}{milliseconds(before[way.name]):>10}" for way in found]
