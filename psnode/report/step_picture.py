"""A picture of a predicted step and, below it on the same scale, of a measured step.

Each step has lanes with bars, whose style shows the kind of work.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree.ElementTree import Element

from psnode.config.amounts import milliseconds
from psnode.errors import ConfigurationError
from psnode.plans.prediction import SPANS, PredictedSpan, Prediction
from psnode.plans.roles import MASTER
from psnode.report.chart import Scale
from psnode.report.critical import CriticalPath, WorkSpan, computing, name_of
from psnode.report.elements import e
from psnode.report.svg_file import write_svg

_WIDTH, _LEFT, _RIGHT, _LANE, _HEAD = 940, 90, 10, 20, 24
_MOST_LANES, _MOST_BARS = 12, 1500
_MOST_ROWS = {"gradients": 3, "weights": 3}  # a worker has a connection to every rank that updates weights
_LONGEST = 1e9  # seconds; a file may hold any number
# lanes of a predicted step by kind of work; decoding and updates have as many lanes as they need
_LANES = {
    "passes": "worker", "apply": "worker", "encode": "coding", "in": "gradients", "decode": "updates", "update": "updates",
    "out": "weights",
}  # fmt: skip
_WORDS = {
    "forward_backward": "passes", "apply": "loading weights", "encode": "coding", "in": "gradients on links",
    "decode": "decoding", "update": "update", "downlink": "coding weights", "out": "weights on links", "wait": "waiting",
}  # fmt: skip
_PREDICTED = {"passes": "forward_backward"}  # styles of predicted kinds whose style has another name
# styles of the spans of a timeline whose style has another name
_RECORDED = {
    "finish": "update", "norm": "update", "protect": "update", "constrain": "update", "average": "update", "drain": "encode",
}  # fmt: skip


class WorkBar(NamedTuple):
    """A bar in a lane, from time `begin` to time `end` in seconds.

    `style`: a class of the style sheet. `words`: the text that is shown under the pointer.
    """

    style: str
    begin: float
    end: float
    words: str


class StepPanel(NamedTuple):
    """The part of a picture that shows one step, which takes `seconds`. `lanes`: the name and the bars of each lane."""

    title: str
    seconds: float
    lanes: Sequence[tuple[str, Sequence[WorkBar]]]


def predicted_panel(prediction: Prediction) -> StepPanel:
    """Return the panel of a predicted step. The prediction must have spans."""
    by_lane: dict[str, list[PredictedSpan]] = {}
    for kind, lane in _LANES.items():
        by_lane.setdefault(lane, []).extend(span for span in prediction.spans if span.kind == kind)
    rows = {name: _rows(spans)[: _MOST_ROWS.get(name, _MOST_LANES)] for name, spans in by_lane.items()}
    lanes = [(name, list(map(_bar, row))) for name, each in rows.items() for row in each]
    return StepPanel(f"predicted: {milliseconds(prediction.step)}, {prediction.source}", prediction.step, lanes)


def _bar(span: PredictedSpan) -> WorkBar:
    group = f", group {span.group}" if span.group >= 0 else ""
    return WorkBar(_PREDICTED.get(span.kind, span.kind), span.begin, span.end, f"{SPANS[span.kind]}{group}")


def _rows(spans: Iterable[PredictedSpan]) -> list[list[PredictedSpan]]:
    """Return the spans in rows without overlaps. Each span is in the first row that is free at the span's beginning."""
    rows: list[list[PredictedSpan]] = []
    for span in sorted(spans, key=lambda span: span.begin):
        free = next((row for row in rows if row[-1].end <= span.begin + 1e-9), None)
        if free is None:
            rows.append([span])
        else:
            free.append(span)
    return rows


def measured_panel(path: CriticalPath, spans: Sequence[WorkSpan]) -> StepPanel:
    """Return the panel of a measured step, with lanes of its root and of the worker whose gradient came last.

    `path`: the critical path of the step. `spans`: the spans of the timeline.
    """
    near = [span for span in spans if span.stop > path.start and span.start < path.stop]
    worker = path.worker or path.root or min((span.rank for span in near if span.rank != MASTER), default=MASTER)
    tracks = sorted({(span.rank, span.track) for span in near if span.rank in (worker, path.root)})
    lanes = []
    for rank, track in sorted(tracks, key=lambda each: each[0] != worker)[:_MOST_LANES]:  # the worker's lanes come first
        bars = [
            WorkBar(
                _RECORDED.get(span.name, span.name if span.name in _WORDS else "rest"),
                max(span.start, path.start) - path.start, min(span.stop, path.stop) - path.start, span.name,
            )
            for span in near if (span.rank, span.track) == (rank, track)
        ]  # fmt: skip
        lanes.append((name_of(rank, computing(spans)), bars[:_MOST_BARS]))
    seconds = path.stop - path.start
    return StepPanel(f"measured: {milliseconds(seconds)}, step {path.step}, of median duration", seconds, lanes)


def picture(title: str, panels: Sequence[StepPanel]) -> Element:
    """Return a drawing of the panels, one below another, over a common axis in milliseconds."""
    longest = max([panel.seconds for panel in panels] + [bar.end for panel in panels for _, bars in panel.lanes for bar in bars])
    across = Scale(0.0, 1e3 * min(longest, _LONGEST), _LEFT, _WIDTH - _RIGHT)
    made, y = list[Element](), 0.0
    for panel in panels:
        made.append(e("text", panel.title, x=_LEFT, y=y + 15, class_="tick"))
        y += _HEAD
        for name, bars in panel.lanes:
            made.append(e("text", name, x=_LEFT - 8, y=y + 14, class_="tick", text_anchor="end"))
            made += [_drawn(bar, across, y) for bar in bars]
            y += _LANE
    made += _axis(across, y + 4)
    made += _legend({bar.style for panel in panels for _, bars in panel.lanes for bar in bars}, y + 58)
    return e("svg", e("title", title), *made, view_box=f"0 0 {_WIDTH} {y + 66:.0f}", role="img", class_="lanes")


def _drawn(bar: WorkBar, across: Scale, y: float) -> Element:
    x, stop = across.at(1e3 * bar.begin), across.at(1e3 * bar.end)
    words = f"{bar.words}: {1e3 * (bar.end - bar.begin):.2f} ms"
    return e(
        "rect", e("title", words), x=f"{x:.1f}", width=f"{max(stop - x, 0.5):.1f}", y=y + 3, height=_LANE - 6,
        class_=f"span {bar.style}",
    )  # fmt: skip


def _axis(across: Scale, y: float) -> list[Element]:
    made = [e("line", x1=across.start, x2=across.stop, y1=y, y2=y, class_="axis")]
    for value in across.ticks(8):
        x = f"{across.at(value):.1f}"
        made.append(e("line", x1=x, x2=x, y1=y, y2=y + 4, class_="axis"))
        made.append(e("text", f"{value:,.6g}", x=x, y=y + 15, class_="tick", text_anchor="middle"))
    middle, words = (across.start + across.stop) / 2, "milliseconds since the version before"
    return [*made, e("text", words, x=middle, y=y + 30, class_="name", text_anchor="middle")]


def _legend(styles: Iterable[str], y: float) -> list[Element]:
    there, made, x = set(styles), list[Element](), float(_LEFT)
    for style, words in _WORDS.items():
        if style in there:
            made.append(e("rect", x=x, y=y - 9, width=10, height=10, class_=f"span {style}"))
            made.append(e("text", words, x=x + 14, y=y, class_="tick", text_anchor="start"))
            x += 30 + 6.2 * len(words)
    return made


def save_svg(file: Path, prediction: Prediction) -> None:
    """Write a picture of a predicted step to an SVG file with the style of a report. Its folder is created if needed.

    Raises ConfigurationError if the file cannot be written. Also raises it if the prediction has no spans, as for a step with
    too many of them.
    """
    if not prediction.spans:
        raise ConfigurationError("the step has too many parts to be drawn: leave --plot out")
    drawing = picture("A predicted step", [predicted_panel(prediction)])
    write_svg(file, drawing, "--plot")
