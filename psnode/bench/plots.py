"""Rate-distortion plot of `psnode bench codecs`: settings as points, bounds as lines, and names along the Pareto front."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox

FORMATS = (".png", ".svg")
_LEAST_BITS, _MOST_BITS = 0.02, 10.0
_SHAPES = "osD^vP"
# possible offsets of a name from its point, in 1/72 inch; the nearest free one is used
_PLACES: list[tuple[float, ...]] = sorted(
    product((6, -6, 18, -18, 34, -34, 56, -56, 84, -84), repeat=2), key=lambda place: abs(place[0]) + 2 * abs(place[1])
)


def draw(result: Mapping[str, Any], path: Path) -> list[Path]:
    """Write the plot, a panel for each input, to `path` with the suffixes .png and .svg; return both paths."""
    figure = figure_of(result)
    path.parent.mkdir(parents=True, exist_ok=True)
    files = [path.with_suffix(ending) for ending in FORMATS]
    for file in files:
        figure.savefig(file, dpi=110)
    return files


def figure_of(result: Mapping[str, Any]) -> Figure:
    """Return the plot with its layout computed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    sources = result["sources"]
    figure = Figure(figsize=(6.2 * len(sources), 7.4), layout="constrained")
    FigureCanvasAgg(figure)
    styles = _styles(sources)
    panels = figure.subplots(1, len(sources), squeeze=False, sharey=True)[0]
    for panel, (name, source) in zip(panels, sources.items(), strict=True):
        _panel(panel, name, source, styles)
    errors = [row["shrunk"] for source in sources.values() for row in source["rows"] if _inside(row)]
    panels[0].set(
        ylim=(min(errors, default=0.01) / 3, 1.5 * max(errors, default=1.0)),
        ylabel="squared error: α, or ω / (1 + ω) of unbiased codecs (filled)",
    )
    entries = {label: line for panel in panels for line, label in zip(*panel.get_legend_handles_labels(), strict=True)}
    figure.legend(
        entries.values(), entries.keys(), loc="outside lower center", ncols=4 * len(sources), fontsize="small", frameon=False
    )
    figure.suptitle(f"{result['cpu']}, {result['date'][:10]}", fontsize="medium")
    figure.draw_without_rendering()  # compute the layout, on which the places of the names depend
    for panel, source in zip(panels, sources.values(), strict=True):
        _name_front(panel, [row for row in source["rows"] if _inside(row)])
    return figure


def front(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the Pareto front, by ascending bits: the settings for which no other setting has both fewer bits and less error."""
    found: list[Mapping[str, Any]] = []
    for row in sorted(filter(_inside, rows), key=lambda row: (row["bits"], row["shrunk"])):
        if not found or row["shrunk"] < found[-1]["shrunk"]:
            found.append(row)
    return found


def _family(row: Mapping[str, Any]) -> str:
    return str(row["spec"]).partition(":")[0].partition("+")[0]


def _styles(sources: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return a marker and a colour for each family of codecs, the same in all panels."""
    families = sorted({_family(row) for source in sources.values() for row in source["rows"] if _inside(row)})
    return {family: (_SHAPES[number // 10 % len(_SHAPES)], f"C{number % 10}") for number, family in enumerate(families)}


def _panel(panel: Axes, name: str, source: Mapping[str, Any], styles: Mapping[str, tuple[str, str]]) -> None:
    bits = np.geomspace(_LEAST_BITS, _MOST_BITS, 300)
    panel.plot(bits, 4.0**-bits, "k-", lw=1, label="bound for every input")
    panel.plot(source["curve"]["bits"], source["curve"]["errors"], "k--", lw=1, label="R(D), independent values")
    rows = [row for row in source["rows"] if _inside(row)]
    for row in rows:
        marker, colour = styles[_family(row)]
        panel.plot(row["bits"], row["shrunk"], marker, ms=5, color=colour, markerfacecolor=colour if row["unbiased"] else "none")
    for family, (marker, colour) in styles.items():
        panel.plot([], [], marker, ms=5, color=colour, label=family)
    panel.set(xlabel="bits a coordinate, header included", title=name, xscale="log", yscale="log")
    panel.set_xlim(_LEAST_BITS, 1.15 * _MOST_BITS)
    panel.xaxis.set_major_formatter("{x:g}")
    panel.grid(alpha=0.25)


def _name_front(panel: Axes, rows: Sequence[Mapping[str, Any]]) -> list[Annotation]:
    """Write the name of each setting of the front at the nearest place that overlaps no other name or point, if one exists."""
    inside = panel.get_window_extent()
    points = panel.transData.transform([(row["bits"], row["shrunk"]) for row in rows])
    taken: list[Bbox] = []
    made = []
    for row in front(rows):
        for place in _PLACES:
            name = _annotate(panel, row, place)
            box = name.get_window_extent().expanded(1.02, 1.1)
            free = not any(box.overlaps(other) for other in taken) and not any(box.contains(*point) for point in points)
            if free and all(inside.contains(*corner) for corner in box.corners()):
                taken.append(box)
                made.append(name)
                break
            name.remove()
    return made


def _annotate(panel: Axes, row: Mapping[str, Any], place: tuple[float, ...]) -> Annotation:
    return panel.annotate(
        row["spec"], (row["bits"], row["shrunk"]), (place[0], place[1]), textcoords="offset points", fontsize=7, va="center",
        ha="left" if place[0] > 0 else "right", arrowprops={"arrowstyle": "-", "lw": 0.4, "color": "0.5", "shrinkB": 3},
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.5},
    )  # fmt: skip


def _inside(row: Mapping[str, Any]) -> bool:
    return "failed" not in row and row["error"] > 0 and _LEAST_BITS <= row["bits"] <= _MOST_BITS
