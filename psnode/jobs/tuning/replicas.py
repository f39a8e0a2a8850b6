"""Replicas of a trial: the same training with several seeds. Trials are compared by the mean result of their replicas."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from psnode.jobs.tuning.trial import Trial


@dataclass(frozen=True)
class Replicas:
    """A trial that is run once with each of `seeds`. Each run is a separate job in its own directory.

    `trial`: the trial before a seed is added to its options.
    """

    trial: Trial
    seeds: tuple[int, ...]

    @property
    def runs(self) -> tuple[Trial, ...]:
        """The trials to run, one for each seed. If there is only one seed, this is the trial unchanged."""
        if len(self.seeds) == 1:
            return (self.trial,)
        return tuple(
            replace(
                self.trial,
                values={**self.trial.values, "seed": str(seed)},
                options=(*self.trial.options, "--seed", str(seed)),
            )
            for seed in self.seeds
        )

    def results(self, steps: int, metric: str) -> list[float | None]:
        """Return the metric of each seed's run after `steps` steps (see `Trial.result`)."""
        return [run.result(steps, metric) for run in self.runs]

    def sent(self) -> dict[str, Any]:
        """Return the steps of the shortest run, and the sums of the seconds and bytes of all runs."""
        found = [run.sent() for run in self.runs]
        return {
            "steps": min(one["steps"] for one in found),
            "seconds": sum(one["seconds"] for one in found),
            "bytes": sum(one["bytes"] for one in found),
        }


def mean_and_error(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Return the mean of `values` and its standard error.

    The standard error is the sample's standard deviation divided by the square root of the sample's size. Both results are
    None if there are no values, or if a value is None. The error of a single value is None.
    """
    known = [value for value in values if value is not None]
    if not values or len(known) < len(values):
        return None, None
    return statistics.fmean(known), statistics.stdev(known) / math.sqrt(len(known)) if len(known) > 1 else None
