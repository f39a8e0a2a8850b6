"""A picture of the routes of a step's groups.

Three columns show the ranks that send gradients, the roots, and the readers of weights. Lines between them stand for frames.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from xml.etree.ElementTree import Element

from psnode.config.amounts import amount
from psnode.errors import ConfigurationError
from psnode.jobs.planning.routing.link_loads import LinkLoad, RoutedFrame, frames_of
from psnode.jobs.planning.routing.route_lines import busy_text, groups_text, loads_of, role_of, share_text, title_of
from psnode.jobs.planning.routing.routed_groups import RoutedGroups
from psnode.report.elements import e
from psnode.report.svg_file import write_svg

_WIDTH, _TOP, _ROW, _BOX, _HIGH = 940, 64, 56, 190, 40
_COLUMNS = {"sender": 20, "root": 375, "reader": 730}  # left edges of boxes
_BEND = (_COLUMNS["root"] - _COLUMNS["sender"] - _BOX) / 2  # distance of a line's control points from its ends
_HEADS = {"sender": "send gradients", "root": "add them up, update", "reader": "compute with the weights"}
_THICKEST = 9.0
_MOST_LINES = 20_000
_Line = tuple[tuple[str, int], tuple[str, int]]


def save_routes(file: Path, groups: RoutedGroups, name: str, topology: str) -> None:
    """Write a picture of the routes of a scheme's groups to an SVG file. Its folder is created if needed.

    Raises ConfigurationError if there are too many routes to be drawn, and if the file cannot be written.
    """
    write_svg(file, route_picture(groups, title_of(groups, name, topology)), "--draw")


def route_picture(groups: RoutedGroups, title: str) -> Element:
    """Return the picture of the routes of `groups`.

    The width of a line is proportional to its bytes. A line is dashed if its bytes stay on one rank. Raises
    ConfigurationError if there are too many lines for a picture.
    """
    loads = loads_of(groups)
    places = _places(groups, loads)
    lines: Counter[_Line] = Counter()
    for frame in frames_of(groups.routes, groups.layout.computing):
        costs = groups.costs.groups[frame.group]
        lines[_ends(frame, groups)] += costs.up if frame.is_gradient else costs.down
    if len(lines) > _MOST_LINES:
        raise ConfigurationError("there are too many routes to be drawn: draw those of fewer workers")
    most = max(lines.values(), default=1)
    made = [e("text", title, x=_COLUMNS["sender"], y=20, class_="tick")]
    made += [e("text", words, x=_COLUMNS[column], y=48, class_="name") for column, words in _HEADS.items()]
    made += [_line(ends, nbytes, nbytes / max(most, 1), places) for ends, nbytes in lines.items()]
    whole = sum(groups.sizes)
    for (column, rank), y in places.items():
        made += _box(column, loads[rank], y, whole)
    height = max(places.values()) + _ROW
    passed_on = any(source == target == "reader" for (source, _), (target, _) in lines)
    width = _WIDTH + (_BEND if passed_on else 0)
    return e("svg", e("title", title), *made, view_box=f"0 0 {width:.0f} {height:.0f}", role="img", class_="lanes")


def _places(groups: RoutedGroups, loads: Sequence[LinkLoad]) -> dict[tuple[str, int], float]:
    """Return the vertical position of the upper edge of each box, by column and rank. Shorter columns are centred."""
    ranks = {
        "sender": [*groups.layout.computing],
        "root": [load.rank for load in loads if load.groups],
        "reader": sorted({reader for route in groups.routes for reader in route.readers}),
    }
    longest = max(map(len, ranks.values()))
    return {
        (column, rank): _TOP + _ROW * (place + (longest - len(row)) / 2)
        for column, row in ranks.items()
        for place, rank in enumerate(row)
    }


def _ends(frame: RoutedFrame, groups: RoutedGroups) -> _Line:
    """Return the two boxes between which a frame travels. A frame that a reader passes on starts at the reader's box."""
    roots = groups.routes[frame.group].roots
    if frame.is_gradient:
        return ("sender", frame.source), ("root" if frame.target in roots else "sender", frame.target)
    return ("root" if frame.source in roots else "reader", frame.source), ("reader", frame.target)


def _line(ends: _Line, nbytes: int, share: float, places: dict[tuple[str, int], float]) -> Element:
    (source, first), (target, last) = ends
    x, stop = _COLUMNS[source] + _BOX, _COLUMNS[target] if source != target else _COLUMNS[target] + _BOX
    y, end = places[source, first] + _HIGH / 2, places[target, last] + _HIGH / 2
    back = stop + _BEND if source == target else stop - _BEND
    path = f"M {x} {y:.1f} C {x + _BEND:.0f} {y:.1f}, {back:.0f} {end:.1f}, {stop} {end:.1f}"
    own = first == last
    words = f"{role_of(first)} to {role_of(last)}: {amount(nbytes)}{', through no link' if own else ''}"
    colour = "var(--link)" if source == "sender" else "var(--out)"
    dashes = {"stroke_dasharray": "3 4"} if own else {}
    return e(
        "path", e("title", words), d=path, fill="none", stroke=colour, stroke_width=f"{max(1.0, _THICKEST * share):.1f}",
        stroke_opacity="0.6", **dashes,
    )  # fmt: skip


def _box(column: str, load: LinkLoad, y: float, whole: int) -> list[Element]:
    x = _COLUMNS[column]
    passes_on = load.weights_out > 0 and not load.groups
    below = {
        "sender": f"{amount(load.gradients_out)} out",
        "root": f"{share_text(load.coordinates, whole)}, {amount(load.gradients_in)} in, {amount(load.weights_out)} out",
        "reader": f"{amount(load.weights_in)} in" + (f", {amount(load.weights_out)} out" if passes_on else ""),
    }[column]
    words = f"{role_of(load.rank)}: {busy_text(load)}"
    if column == "root":
        words += f"; {groups_text(load.groups)}"
    return [
        e(
            "rect", e("title", words), x=x, y=f"{y:.1f}", width=_BOX, height=_HIGH, rx=4, fill="var(--wash)",
            stroke="var(--rule)",
        ),
        e("text", role_of(load.rank), x=x + 8, y=f"{y + 16:.1f}", class_="name", text_anchor="start"),
        e("text", below, x=x + 8, y=f"{y + 32:.1f}", class_="tick", text_anchor="start"),
    ]  # fmt: skip
