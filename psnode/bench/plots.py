"""The rate-distortion plot of `psnode bench codecs`: every setting as a point, the bounds as lines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from psnode.errors import ConfigurationError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = (".png", ".svg")
_LEAST_BITS, _MOST_BITS = 0.02, 10.0


def draw(result: Mapping[str, Any], path: Path) -> list[Path]:
    """Write the plot as PNG and as SVG, `path` with these endings; a panel an input. Returns the files. ConfigurationError."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigurationError("--plot needs the package matplotlib: pip install matplotlib") from error
    sources = result["sources"]
    figure = Figure(figsize=(7 * len(sources), 7), layout="constrained")
    for panel, (name, source) in zip(figure.subplots(1, len(sources), squeeze=False)[0], sources.items(), strict=True):
        _panel(panel, name, source)
    figure.suptitle(f"{result['cpu']}, {result['date']}")
    path.parent.mkdir(parents=True, exist_ok=True)
    files = [path.with_suffix(ending) for ending in FORMATS]
    for file in files:
        figure.savefig(file, dpi=120)
    return files


def _panel(panel: Axes, name: str, source: Mapping[str, Any]) -> None:
    bits = np.linspace(0, _MOST_BITS, 300)
    panel.plot(bits, 4.0**-bits, "k-", label="bound for every input: α = 4^-R, ω = 1 / (4^R - 1)")
    panel.plot(source["curve"]["bits"], source["curve"]["errors"], "k--", label="R(D) of this distribution, independent values")
    families = sorted({row["spec"].partition(":")[0].partition("+")[0] for row in source["rows"]})
    for number, family in enumerate(families):
        rows = [row for row in source["rows"] if row["spec"].partition(":")[0].partition("+")[0] == family and _inside(row)]
        for row in rows:
            face = f"C{number % 10}" if row["unbiased"] else "none"
            panel.plot(row["bits"], row["shrunk"], "os^Dv"[number // 10 % 5], color=f"C{number % 10}", markerfacecolor=face)
            panel.annotate(row["spec"], (row["bits"], row["shrunk"]), (3, 3), textcoords="offset points", fontsize=5)
        if rows:
            panel.plot([], [], "os^Dv"[number // 10 % 5], color=f"C{number % 10}", label=family)
    panel.set(xlabel="bits a coordinate, header included", ylabel="α, or ω / (1 + ω) of unbiased codecs (filled)", title=name)
    panel.set(xlim=(0, _MOST_BITS), ylim=(1e-6, 1.5), yscale="log")
    panel.legend(fontsize=6)
    panel.grid(alpha=0.3)


def _inside(row: Mapping[str, Any]) -> bool:
    return "failed" not in row and row["error"] > 0 and _LEAST_BITS <= row["bits"] <= _MOST_BITS
