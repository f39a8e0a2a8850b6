"""The predicted step time of a job whose groups travel on routes.

It comes from the graph of all frames or, if there are very many frames, from the folded graph.
"""

from __future__ import annotations

from psnode.config.amounts import counted
from psnode.errors import ConfigurationError
from psnode.jobs.planning.job_step import StepTime, job_step
from psnode.jobs.planning.profile import Profile
from psnode.jobs.planning.routing.folded_step import folded_step, folds
from psnode.jobs.planning.routing.routed_groups import RoutedGroups
from psnode.jobs.planning.scenario import Scenario

_MOST_FRAMES = 5000  # the most frames with gradients in a step that is predicted by the graph of all frames


class TooLargeError(ConfigurationError):
    """Error for a step whose prediction would take too long."""


def routed_step(profile: Profile, groups: RoutedGroups, scenario: Scenario, topology: str) -> StepTime:
    """Return the step time of a job whose groups travel on the routes of `topology`.

    Raises TooLargeError if there are too many frames for the graph of all frames, and the workers cannot be folded.
    """
    if is_small(groups):
        return job_step(profile, groups.costs, scenario, groups.routes)
    if not folds(groups, scenario):
        raise TooLargeError(
            f"a step of {counted(groups.frames, 'frame')} with gradients takes too long to predict under --topology {topology}: "
            "ask for fewer workers"
        )
    return folded_step(profile, groups, scenario)


def is_small(groups: RoutedGroups) -> bool:
    """Return True if a step has so few frames that the graph of all frames predicts it."""
    return groups.frames <= _MOST_FRAMES
