"""The curves of a report: quantities of the runs over steps, seconds and bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple
from xml.etree.ElementTree import Element

import numpy as np

from psnode.records.metrics import EMA_EVALUATIONS, EVALUATIONS
from psnode.report.chart import LEFT, RIGHT, WIDTH, Line, axis_below, chart, scale_of
from psnode.report.elements import e
from psnode.report.run import Run
from psnode.report.steps import AXES, Steps, mean_curve
from psnode.report.variants import Variant

CALM = {"calibrated", "learning rate", "promoted", "resharded", "returned"}  # events shown as information, not as warnings
_MOST_METRICS = 12
_MOST_MARKS = 400  # maximum number of a run's events that are marked
_LANE = 22


_NORM = "gradient_norm"
_LOW = 0.1  # a schedule counts as falling to 0 if its last rate is below this fraction of its highest rate
_GROWS = (
    "Under a feedback rule with rescale=true, residuals are divided by the learning rate, which falls to 0 here: these norms "
    "rise as the inverse of the rate. This is no divergence, since an update is the rate times the gradient."
)


class Panel(NamedTuple):
    """A quantity that is drawn over an axis: a column of the steps or, if `evaluated` is True, of the evaluations.

    `factor`: the factor by which the values are multiplied. `zero`: True if a linear axis of the values starts at 0.
    """

    title: str
    column: str
    unit: str = ""
    evaluated: bool = False
    factor: float = 1.0
    zero: bool = False


_AHEAD = (Panel("Training loss", "loss"), Panel("Test loss", "loss", evaluated=True))
_BEHIND = (
    Panel("Relative norm of the coding error", "relative_error", zero=True),
    Panel("Norm of the gradient", _NORM),
    Panel("Learning rate", "lr", zero=True),
    Panel("Time of a step", "seconds.step", "s", zero=True),
    Panel("Bytes up per step", "uplink_bytes", "bytes", zero=True),
    Panel("Bytes down per step", "downlink_bytes", "bytes", zero=True),
    Panel("Examples per second", "samples_per_second", zero=True),
    Panel("Workers that contribute", "contributing", zero=True),
    Panel("Gradient frames dropped", "dropped", zero=True),
)
_DULL = {"contributing": "workers", "dropped": ""}  # columns shown only if they differ from another column, or from 0


def panels(runs: Sequence[Run]) -> list[Panel]:
    """Return the panels of the quantities for which at least one run has values.

    The number of contributing workers is left out if all workers contributed to every step, and the number of dropped frames
    if it is always 0.
    """
    tests = _metrics(table for run in runs for table in run.evaluations.values())
    if not any(name == "metrics.top1" for name in tests) and any(run.best is not None for run in runs):
        tests = ["top1", *tests]
    wanted = [*_AHEAD, *(_metric("Test", name, True) for name in tests)]
    wanted += [_metric("Training", name, False) for name in _metrics(run.steps for run in runs)]
    return [panel for panel in (*wanted, *_BEHIND) if any(_tells(run, panel) for run in runs)]


def _metrics(tables: Iterator[Steps] | Sequence[Steps]) -> list[str]:
    found = dict.fromkeys(name for table in tables for name in table.columns if name.startswith("metrics."))
    return list(found)[:_MOST_METRICS]


def _metric(kind: str, column: str, evaluated: bool) -> Panel:
    name = column.removeprefix("metrics.")
    if name in ("top1", "top5"):
        return Panel(f"{kind} accuracy ({name})", column, "%", evaluated, 100.0)
    return Panel(f"{kind} {name}", column, "", evaluated)


def _tells(run: Run, panel: Panel) -> bool:
    if panel.evaluated:
        return any(table.known(panel.column).size for table in run.evaluations.values())
    known = run.steps.known(panel.column)
    if panel.column in _DULL:
        usual = run.steps.column(_DULL[panel.column]) if _DULL[panel.column] else 0.0
        return bool(np.any(np.nan_to_num(run.steps.column(panel.column) - usual)))
    return bool(known.size)


def figures(variants: Sequence[Variant]) -> list[Element]:
    """Return a figure for each quantity. A figure has one chart per axis, of which the page shows one at a time."""
    made = []
    for panel in panels([run for variant in variants for run in variant.runs]):
        pictures = [
            e("div", chart(panel.title, axis, _lines(variants, panel, axis), panel.unit, zero=panel.zero), class_=f"by-{axis}")
            for axis in AXES
        ]
        unit = f", {panel.unit}" if panel.unit in ("%", "s") else ""
        caption = e("figcaption", e("strong", panel.title + unit), e("output", class_="readout"))
        grows = panel.column == _NORM and any(_divided(run) for variant in variants for run in variant.runs)
        made.append(e("figure", caption, *pictures, e("p", _GROWS, class_="note") if grows else None))
    return made


def _divided(run: Run) -> bool:
    """Return True if a run divides residuals by a learning rate that falls nearly to 0, so that norms of its gradients grow."""
    rates = run.steps.known("lr")
    rescales = "rescale=true" in str(run.scheme.get("feedback")).partition(":")[2].split(",")
    falls = bool(rates.size) and float(rates[-1]) < _LOW * float(np.max(rates))
    return rescales and falls and bool(run.steps.known(_NORM).size)


def _lines(variants: Sequence[Variant], panel: Panel, axis: str) -> list[Line]:
    made = []
    for variant in variants:
        for file in (EVALUATIONS, EMA_EVALUATIONS) if panel.evaluated else ("",):
            runs = [run for run in variant.runs if _table(run, file).known(panel.column).size]
            tables = [_table(run, file) for run in runs]
            curve = tables[0].curve(panel.column) if len(tables) == 1 else mean_curve(tables, panel.column)
            if curve.steps.size:
                label = f"{variant.name} (moving average)" if file == EMA_EVALUATIONS else variant.name
                mean, low, high = (panel.factor * each for each in (curve.mean, curve.low, curve.high))
                x = np.mean([run.steps.place(axis, curve.steps) for run in runs], axis=0)
                made.append(Line(label, variant.number, x, mean, low, high, marked=file == EVALUATIONS))
    return made


def _table(run: Run, file: str) -> Steps:
    return run.evaluations.get(file, Steps()) if file else run.steps


def strip(runs: Sequence[Run]) -> list[Element]:
    """Return charts of the events of runs, one chart per axis.

    A chart has a lane for each run with events, and marks for the first events of the run.
    """
    return [e("div", _lanes([run for run in runs if run.events], axis), class_=f"by-{axis}") for axis in AXES]


def _lanes(runs: Sequence[Run], axis: str) -> Element:
    height = _LANE * len(runs) + 44
    reach = [float(run.steps.totals(axis)[-1]) for run in runs if len(run.steps)] or [1.0]
    across = scale_of(reach, LEFT, WIDTH - RIGHT, by_end=True)
    drawing = e("svg", e("title", f"Events over {axis}"), view_box=f"0 0 {WIDTH} {height}", role="img", class_="lanes")
    for number, run in enumerate(runs):
        y = _LANE * number + 6
        drawing.append(e("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y + 8, y2=y + 8, class_="grid"))
        whole = e("title", run.name)
        drawing.append(e("text", whole, _short(run.name), x=LEFT - 6, y=y + 12, class_="tick", text_anchor="end"))
        events = run.events[:_MOST_MARKS]
        for event, place in zip(events, run.steps.place(axis, [event["step"] for event in events]), strict=True):
            name = str(event.get("event"))
            x = f"{across.at(float(place)):.1f}"
            mark = e("line", e("title", f"step {event['step']}: {name}"), x1=x, x2=x, y1=y, y2=y + 16)
            mark.set("class", "calm" if name in CALM else "grave")
            drawing.append(mark)
    drawing.extend(axis_below(across, axis, height - 36))
    return drawing


def _short(name: str) -> str:
    return name if len(name) < 10 else f"…{name[-8:]}"
