"""Plot of `python -m studies.fidelity`: errors of codecs on N(0, 1), with the rate-distortion function of N(0, 1)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from psnode.codecs.arrays import Float64s
from psnode.codecs.table import NAMES, OUTSIDE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_BITS = 3.4
_FAMILIES = ("qsgd", "terngrad", "dithered", "lss", "topk", "polar")  # drawn, like every codec from outside psnode
_PSNODES = {name for number, name in NAMES.items() if number not in OUTSIDE}


def scalar_quantiser(bits: Float64s) -> Float64s:
    """Return the least error of scalar quantisers of N(0, 1) with an ideal entropy coder, at each of `bits`.

    Their intervals have equal widths, except for an interval of any width around 0. A value is decoded as the mean of its
    interval.
    """
    errors = []
    for zone in np.linspace(0.5, 1.2, 15):
        found = np.array([_quantised(step, zone * step) for step in np.geomspace(14, 0.15, 120)])
        errors.append(np.interp(bits, found[:, 0], np.log(found[:, 1])))
    return np.asarray(np.exp(np.min(errors, axis=0)), np.float64)


def _quantised(step: float, zone: float) -> tuple[float, float]:
    """Return the entropy in bits, and the error, of a scalar quantiser of N(0, 1).

    Its intervals are [-zone, zone] and, outside it, intervals of width `step`.
    """
    edges = zone + step * np.arange(math.ceil(7 / step) + 1)
    upper = np.array([0.5 * math.erfc(edge / math.sqrt(2)) for edge in edges])
    density = np.exp(-(edges**2) / 2) / math.sqrt(2 * math.pi)
    shares, moments = np.append(-np.diff(upper), upper[-1]), np.append(-np.diff(density), density[-1])
    used = shares > 1e-15
    shares, moments = shares[used], moments[used]
    middle = 1 - 2 * upper[0]
    entropy = -2 * float(shares @ np.log2(shares)) - middle * math.log2(middle)
    return entropy, 1 - 2 * float(np.sum(moments**2 / shares))


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Write the plot to `path`. It shows errors over bits, and their distances to the rate-distortion function."""
    figure = figure_of(result)
    figure.savefig(path, dpi=100)


def figure_of(result: Mapping[str, Any]) -> Figure:
    """Return the plot: two panels with the same codecs and one legend."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 6.4), layout="constrained")
    whole, gap = figure.subplots(1, 2)
    gaussian = [row for row in result["rows"] if row["source"] == "gaussian"]
    families = [*_FAMILIES, *sorted({_family(row) for row in gaussian} - _PSNODES)]
    drawn = [row for row in gaussian if "decibels" in row and _family(row) in families]
    rows = [row for row in drawn if row["bits"] <= _MOST_BITS]
    for panel, above in (whole, False), (gap, True):
        _panel(panel, rows, families, above)
    if cut := [row["spec"] for row in drawn if row not in rows]:
        whole.set_title(f"above {_MOST_BITS} bits: {', '.join(cut)}", fontsize="small", wrap=True)
    whole.set(ylabel="squared error in dB, unbiased codecs after the best factor")
    gap.set(ylabel="dB above the rate-distortion function")
    gap.set_ylim(bottom=-0.2)
    lines, labels = whole.get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside lower center", ncols=len(labels), fontsize="small", frameon=False)
    figure.suptitle(f"N(0, 1), {result['sources']['gaussian']['size']:,} values, {result['date'][:10]}", fontsize="medium")
    return figure


def _family(row: Mapping[str, Any]) -> str:
    """Return the name of the first codec in a row's spec, which may name a chain of codecs."""
    return str(row["spec"]).partition(":")[0].partition("+")[0]


def _panel(panel: Axes, rows: list[Mapping[str, Any]], families: Sequence[str], above: bool) -> None:
    bits = np.linspace(0.02, _MOST_BITS, 200)
    limit = -20 * math.log10(2) * bits
    scalar = 10 * np.log10(scalar_quantiser(bits))
    panel.plot(bits, limit - above * limit, "k-", lw=1, label="R(D)")
    panel.plot(bits, scalar - above * limit, "k--", lw=1, label="entropy-coded scalar quantiser, ideal coder")
    for number, family in enumerate(families):
        found = sorted((row["bits"], row["decibels"]) for row in rows if _family(row) == family)
        if found:
            x, y = np.array(found).T
            shift = 20 * math.log10(2) * x if above else np.zeros_like(x)
            style = "-o" if family == "polar" else "osD^v"[number % 5]
            panel.plot(x, y + shift, style, ms=5, color=f"C{number}", label=family)
    panel.set(xlabel="bits a value, all bytes of the payload", xlim=(0, _MOST_BITS))
    panel.grid(alpha=0.3)
