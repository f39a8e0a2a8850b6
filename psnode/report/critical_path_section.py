"""The section of a report about critical paths, with the average parts of a step, and one step with the spans of all ranks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from xml.etree.ElementTree import Element

from psnode.plans.roles import MASTER
from psnode.records.timeline import TIMELINE
from psnode.report.comparisons import compared, named
from psnode.report.critical import PARTS, CriticalPath, WorkSpan, bounds, computing, means, name_of, paths, spans_of, typical
from psnode.report.elements import Content, e
from psnode.report.step_picture import measured_panel, picture, predicted_panel
from psnode.report.variants import Variant

_WIDTH, _LEFT, _LANE = 940, 90, 20
_MOST_LANES = 24
_MOST_SPANS = 1500
_Found = tuple[Variant, list[WorkSpan], list[CriticalPath]]
_TRACKS = ("forward_backward", "wait", "up", "decode", "update", "downlink", "apply", "drain", "checkpoint")


def section(runs: Sequence[Variant]) -> list[Element]:
    """Return the section about the timelines of `runs`, which are variants with one run each.

    It is empty if no timeline has a step from beginning to end.
    """
    found: list[_Found] = []
    for each in runs:
        run = each.first
        spans = spans_of(run.timeline())
        if whole := paths(spans):
            found.append((each, spans, whole))
        elif spans:
            run.problems.append(f"{run.path / TIMELINE} holds no step from beginning to end: there is no critical path")
    if not found:
        return []
    told = (
        "The work that the end of a step waited for: consecutive parts, on the worker whose gradient came last and on the rank "
        "with the last update."
    )
    figures = chain.from_iterable((_figure(*each), _beside_prediction(*each)) for each in found)
    return [e("p", told), _shares(found), *(figure for figure in figures if figure is not None)]


def _beside_prediction(run: Variant, spans: Sequence[WorkSpan], found: Sequence[CriticalPath]) -> Element | None:
    """Return a figure of the run's predicted step above its measured step of median duration.

    Returns None if the run has no prediction with spans.
    """
    prediction = run.first.prediction
    if prediction is None or not prediction.spans:
        return None
    caption = "a predicted step above a measured one; timelines hold no links, and of coding its end after the passes"
    panels = [predicted_panel(prediction), measured_panel(typical(found), spans)]
    drawing = picture("A predicted step and a measured one", panels)
    return e("figure", e("figcaption", named(run), caption), drawing, class_="wide")


def _figure(run: Variant, spans: Sequence[WorkSpan], found: Sequence[CriticalPath]) -> Element:
    path = typical(found)
    length = f"{1e3 * (path.stop - path.start):.1f} ms, the median"
    caption = f"step {path.step} ({length}): its critical path, and below it the work of all ranks"
    return e("figure", e("figcaption", named(run), caption), _picture(path, spans), class_="wide")


def _with_article(rank: int, workers: Collection[int]) -> str:
    return "the master" if rank == MASTER else name_of(rank, workers)


def _shares(found: Sequence[_Found]) -> Element:
    parts = [means(whole) for _, _, whole in found]
    rows: list[tuple[Content, list[Content]]] = []
    for name in dict.fromkeys([*PARTS, *chain(*parts)]):
        cells = [_share(each, name) for each in parts]
        if any(cell is not None for cell in cells):
            rows.append((PARTS.get(name, name), [*cells]))
    rows.append(("step", [f"{1e3 * sum(each.values()):.2f}" for each in parts]))
    ranks = sorted({rank for _, _, whole in found for rank in bounds(whole)})
    workers = frozenset[int]().union(*(computing(spans) for _, spans, _ in found))
    for rank in ranks:
        counts = (bounds(whole).get(rank, 0) / len(whole) for _, _, whole in found)
        rows.append((f"bounded by {_with_article(rank, workers)}", [f"{100 * count:.1f} % of steps" for count in counts]))
    return compared("Mean milliseconds of a step's critical path", [run for run, _, _ in found], rows)


def _share(parts: Mapping[str, float], name: str) -> Element | None:
    if name not in parts:
        return None
    share = 100 * parts[name] / sum(parts.values())
    bar = e("span", e("span", style=f"width:{share:.1f}%"), class_="bar")
    return e("span", f"{1e3 * parts[name]:.2f} ", e("small", f"{share:.1f} %"), bar)


def _picture(path: CriticalPath, spans: Sequence[WorkSpan]) -> Element:
    near = [span for span in spans if span.stop > path.start and span.start < path.stop][:_MOST_SPANS]
    lanes = sorted({(span.rank, span.track) for span in near})[:_MOST_LANES]
    height = _LANE * (len(lanes) + 1) + 44
    drawing = e(
        "svg", e("title", f"Step {path.step} on all ranks"), view_box=f"0 0 {_WIDTH} {height}", role="img", class_="lanes"
    )
    scale = (_WIDTH - _LEFT - 10) / (path.stop - path.start)

    def bar(name: str, start: float, stop: float, y: float, words: str) -> Element:
        x = _LEFT + scale * (max(start, path.start) - path.start)
        width = max(scale * (min(stop, path.stop) - max(start, path.start)), 0.5)
        text = f"{words}: {1e3 * (stop - start):.2f} ms"
        kind = name if name in _TRACKS else "rest"
        return e("rect", e("title", text), x=f"{x:.1f}", width=f"{width:.1f}", y=y + 3, height=_LANE - 6, class_=f"span {kind}")

    drawing.append(e("text", "critical path", x=_LEFT - 8, y=14, class_="tick", text_anchor="end"))
    workers = computing(spans)
    drawing.extend(
        bar(part.name, part.start, part.stop, 0, f"{_with_article(part.rank, workers)}, {part.name}") for part in path.parts
    )
    for number, (rank, track) in enumerate(lanes, 1):
        y = _LANE * number + 6
        drawing.append(e("text", name_of(rank, workers), x=_LEFT - 8, y=y + 14, class_="tick", text_anchor="end"))
        inside = (span for span in near if (span.rank, span.track) == (rank, track))
        drawing.extend(bar(span.name, span.start, span.stop, y, span.name) for span in inside)
    drawing.extend(_legend(path, near, height - 12))
    return drawing


def _legend(path: CriticalPath, near: Sequence[WorkSpan], y: float) -> list[Element]:
    there = {span.name for span in near} | {part.name for part in path.parts}
    made, x = list[Element](), float(_LEFT)
    for name in _TRACKS:
        if name in there:
            words = "coding and link up" if name == "up" else name.replace("_", ", ")
            made += [
                e("rect", x=x, y=y - 9, width=10, height=10, class_=f"span {name}"),
                e("text", words, x=x + 14, y=y, class_="tick"),
            ]
            made[-1].set("text-anchor", "start")
            x += 30 + 6.2 * len(words)
    return made
