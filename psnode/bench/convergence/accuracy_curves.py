"""Test accuracy and loss during a training: the points of one run, and means over the seeds of a contender."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from psnode.jobs.tuning.replicas import mean_and_error


class CurvePoint(NamedTuple):
    """An evaluation after `step` steps. Bytes and seconds are sums over the steps up to `step`.

    `top1`: a fraction; None for a task without accuracy. `nbytes`: mean bytes through the link of one worker, in and out.
    `link_bytes`: bytes that pass the busiest link one after another; in a star all bytes pass the master's link. `seconds`:
    measured time. `computing`: seconds in which one worker and the master compute, without waits and transfers.
    """

    step: int
    loss: float
    top1: float | None
    nbytes: float
    link_bytes: float
    seconds: float
    computing: float

    def at_rate(self, rate: float | None) -> float | None:
        """Return the estimated seconds on links of `rate` bit/s: computation plus transfer, without overlap.

        None if `rate` is None.
        """
        return None if rate is None else self.computing + 8 * self.link_bytes / rate

    def as_dict(self, rate: float | None) -> dict[str, Any]:
        """Return the fields as a dict, with the estimate for links of `rate` bit/s under `at_rate`."""
        return {**self._asdict(), "at_rate": self.at_rate(rate)}


def mean_curve(curves: Sequence[Sequence[CurvePoint]], rate: float | None) -> list[dict[str, Any]]:
    """Return the mean curve of runs that differ only by their seeds: a dict for each step that all runs have evaluated.

    `at_rate` is the estimated time in seconds on links of `rate` bit/s; None if `rate` is None.
    """
    steps = sorted(set[int].intersection(*({point.step for point in curve} for curve in curves)))
    found = []
    for step in steps:
        points = [next(point for point in curve if point.step == step) for curve in curves]
        top1, top1_error = mean_and_error([point.top1 for point in points])
        loss, loss_error = mean_and_error([point.loss for point in points])
        means = {name: statistics.fmean(getattr(point, name) for point in points) for name in ("nbytes", "seconds", "computing")}
        estimate, _ = mean_and_error([point.at_rate(rate) for point in points])
        figures = {"top1": top1, "top1_error": top1_error, "loss": loss, "loss_error": loss_error}
        found.append({"step": step, **figures, **means, "at_rate": estimate})
    return found


def front(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the Pareto front of `rows`, by ascending bytes.

    It consists of the rows with a better last result than every row with fewer bytes.
    """
    found: list[dict[str, Any]] = []
    for row in sorted(rows, key=lambda row: (row["curve"][-1]["nbytes"], -merit(row))):
        if not found or merit(row) > merit(found[-1]):
            found.append(row)
    return found


def merit(figures: dict[str, Any]) -> float:
    """Return the accuracy, or minus the loss for a task without accuracy."""
    return float(-figures["loss"] if figures["top1"] is None else figures["top1"])
