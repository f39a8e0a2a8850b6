"""Line charts as SVG of a fixed size.

A chart has axes with round numbers, and lines. If the points of a line are means, a band around it shows the extremes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from xml.etree.ElementTree import Element

import numpy as np

from psnode.codecs.arrays import Float64s
from psnode.config.amounts import amount
from psnode.report.elements import e

WIDTH, HEIGHT = 460, 230
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 10, 34
COLOURS = 8  # number of colours in the style sheet; further runs repeat the colours with another dash pattern
_LOG_FROM = 30.0  # the axis is logarithmic if the ratio of the largest to the smallest value is above this


class Line(NamedTuple):
    """A line in a chart: its points (`x`, `y`), and the band around them from `low` to `high`.

    `label`: the name of the line. `colour`: the number that selects the colour. If `marked` is True, every point is drawn as
    a mark.
    """

    label: str
    colour: int
    x: Float64s
    y: Float64s
    low: Float64s
    high: Float64s
    marked: bool = False


@dataclass(frozen=True)
class Scale:
    """A map from values between `low` and `high` to pixels between `start` and `stop`.

    If `log` is True, the logarithms of the values are mapped.
    """

    low: float
    high: float
    start: float
    stop: float
    log: bool = False

    def at(self, value: float) -> float:
        """Return the pixel of a value. A value outside the scale gets the pixel of the nearest end."""
        low, high, here = (math.log10(each) if self.log else each for each in (self.low, self.high, max(value, self.low)))
        share = min(1.0, (here - low) / (high - low))
        return self.start + share * (self.stop - self.start)

    def ticks(self, most: int) -> list[float]:
        """Return about `most` round values along the scale, at which numbers are written.

        On a linear scale they are multiples of 1, 2 or 5 times a power of ten. On a logarithmic scale they are powers of ten,
        with multiples in between if there are few powers.
        """
        if not self.log:
            step = _round_step((self.high - self.low) / most)
            first = math.ceil(self.low / step - 1e-9)
            return [step * k for k in range(first, math.floor(self.high / step + 1e-9) + 1)]
        for factors in ((1, 2, 5), (1, 3), (1,)):
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            found = [
                f * 10.0**k
                for k in decades
                for f in factors
                if self.low <= f * 10.0**k * 1.0001 and f * 10.0**k <= self.high * 1.0001
            ]
            if len(found) <= most + 1:
                return found
        return found[:: math.ceil(len(found) / most)]


def _round_step(least: float) -> float:
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= least * (1 - 1e-9))


def scale_of(values: Iterable[float], start: float, stop: float, *, zero: bool = False, by_end: bool = False) -> Scale:
    """Return a scale that contains `values`, from pixel `start` to pixel `stop`.

    The scale is logarithmic if the values span a factor of more than 30. Otherwise it starts at 0 if `zero` is True. If
    `by_end` is True, `values` are the largest values of several runs. Then the scale is logarithmic if they span a factor of
    more than 8, and otherwise starts at 0.
    """
    found = [value for value in values if math.isfinite(value)]
    if not found:
        return Scale(0.0, 1.0, start, stop)
    low, high = min(found), max(found)
    if low > 0 and high / low > (8.0 if by_end else _LOG_FROM):
        return Scale(low / 30 if by_end else low / 1.2, high if by_end else 1.2 * high, start, stop, log=True)
    low = 0.0 if (zero and low >= 0) or by_end else low
    if high <= low:
        low, high = (low - 0.5 * abs(low) - (low == 0), high + 0.5 * abs(high) + (high == 0))
    room = 0.0 if by_end else 0.04 * (high - low)
    return Scale(low if low == 0 else low - room, high + room, start, stop)


def shown(value: float, unit: str) -> str:
    """Return a value as text for an axis or a list. Only a number of bytes is written with its unit."""
    if unit == "bytes":
        return "0" if not value else f"{value:.0f} B" if value < 1000 else amount(value).replace(".00 ", " ").replace(".0 ", " ")
    if value and not 1e-4 <= abs(value) < 1e6:
        return f"{value:.3g}"
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def chart(title: str, axis: str, lines: Sequence[Line], unit: str, *, zero: bool = False) -> Element:
    """Return a chart of `lines` as SVG.

    `axis`: the horizontal axis, which is "steps", "seconds" or "bytes". `unit`: the unit of the values. `zero`: see
    `scale_of`.
    """
    ends = [float(np.max(line.x)) for line in lines if line.x.size]
    across = scale_of(ends, LEFT, WIDTH - RIGHT, by_end=True)
    shown_values = [value for line in lines for value in line.y]
    up = scale_of(shown_values, HEIGHT - BOTTOM, TOP, zero=zero)
    drawing = e(
        "svg", e("title", f"{title} over {axis}"), e("desc", _words(lines, unit, axis)),
        view_box=f"0 0 {WIDTH} {HEIGHT}", role="img", class_="chart",
        data_x=_data(across), data_y=_data(up), data_axis=axis, data_unit=unit,
    )  # fmt: skip
    drawing.extend(_axes(across, up, axis, unit))
    for line in lines:
        drawing.extend(_drawn(line, across, up))
    return drawing


def _words(lines: Sequence[Line], unit: str, axis: str) -> str:
    """Return a text on the chart for readers who cannot see it. It states the first and the last value of each line."""
    told = []
    for line in (line for line in lines if line.y.size):
        first, last, end = shown(float(line.y[0]), unit), shown(float(line.y[-1]), unit), shown(float(line.x[-1]), axis)
        told.append(f"{line.label}: {first} at first, {last} at {end} {axis}")
    return "; ".join(told)


def _data(scale: Scale) -> str:
    return f"{scale.low:.9g} {scale.high:.9g} {scale.start:g} {scale.stop:g} {int(scale.log)}"


def _axes(across: Scale, up: Scale, axis: str, unit: str) -> list[Element]:
    made = []
    for value in up.ticks(5):
        y = f"{up.at(value):.1f}"
        made.append(e("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid"))
        made.append(e("text", shown(value, unit), x=LEFT - 6, y=y, class_="tick", text_anchor="end", dy="0.32em"))
    made += axis_below(across, axis, HEIGHT - BOTTOM)
    return made


def axis_below(across: Scale, axis: str, y: float) -> list[Element]:
    """Return the horizontal axis at height `y` with its numbers and its name."""
    made = [e("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="axis")]
    for value in across.ticks(5):
        x = across.at(value)
        made.append(e("line", x1=f"{x:.1f}", x2=f"{x:.1f}", y1=y, y2=y + 4, class_="axis"))
        anchor = "end" if x > WIDTH - RIGHT - 14 else "middle"
        made.append(e("text", shown(value, axis), x=f"{x:.1f}", y=y + 15, class_="tick", text_anchor=anchor))
    names = {"steps": "steps", "seconds": "seconds of training", "bytes": "bytes sent by all ranks"}
    made.append(e("text", names[axis], x=(LEFT + WIDTH - RIGHT) / 2, y=y + 30, class_="name", text_anchor="middle"))
    return made


def _drawn(line: Line, across: Scale, up: Scale) -> list[Element]:
    if not line.x.size:
        return []
    x = [across.at(value) for value in line.x]
    colour = f"run{line.colour % COLOURS}" + (" again" if line.colour >= COLOURS else "")
    made = []
    if np.any(line.low < line.high):
        upper = [(a, up.at(value)) for a, value in zip(x, line.high, strict=True)]
        lower = [(a, up.at(value)) for a, value in zip(x, line.low, strict=True)]
        made.append(e("polygon", points=_points([*upper, *reversed(lower)]), class_=f"band {colour}"))
    points = [(a, up.at(value)) for a, value in zip(x, line.y, strict=True)]
    made.append(e("polyline", points=_points(points), class_=f"line {colour}", data_label=line.label))
    if line.marked or len(points) == 1:
        made += [e("circle", cx=f"{a:.1f}", cy=f"{b:.1f}", r=2.5, class_=f"mark {colour}") for a, b in points]
    return made


def _points(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
