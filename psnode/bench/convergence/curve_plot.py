"""Plot of `psnode bench convergence`: accuracy over steps, bytes and seconds, and the Pareto front of the last evaluations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from psnode.bench.convergence.accuracy_curves import front
from psnode.bench.saving import require_matplotlib
from psnode.errors import ConfigurationError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FORMATS = (".pdf", ".png", ".svg")


def check_plot(path: Path) -> None:
    """Raise ConfigurationError if matplotlib is missing or cannot write files like `path`. Call this before any training."""
    require_matplotlib()
    if path.suffix not in _FORMATS:
        raise ConfigurationError(f"--plot {path} must end with {', '.join(_FORMATS)}")


def draw_curves(result: Mapping[str, Any], path: Path) -> None:
    """Write the plot to `path`, in the format of its suffix."""
    figure = curves_figure(result)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def curves_figure(result: Mapping[str, Any]) -> Figure:
    """Return the plot of a result of `psnode bench convergence`.

    Curves are means over the seeds, with a band of one standard error on each side. They show accuracy in per cent, or the loss
    if a contender has no accuracy. Without a rate in the result, the panel over seconds is left out.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    accurate = all(row["top1"] is not None for row in result["rows"])
    figure_of = _accuracy if accurate else _loss
    axes: list[tuple[str, Callable[[Mapping[str, Any]], float]]] = [
        ("steps", lambda point: float(point["step"])),
        ("MB through a worker's link, in and out", lambda point: point["nbytes"] / 1e6),
    ]
    if result["rate"] is not None:
        axes.append((f"seconds on links of {result['rate']}, without overlap (estimate)", lambda point: float(point["at_rate"])))
    figure = Figure(figsize=(4.2 * (len(axes) + 1), 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(axes) + 1, squeeze=False, sharey=True)[0]
    for panel, (label, of) in zip(panels, axes, strict=False):
        for number, row in enumerate(result["rows"]):
            _curve(panel, [of(point) for point in row["curve"]], [figure_of(point) for point in row["curve"]], f"C{number}")
        panel.set(xlabel=label, xscale="linear" if label == "steps" else "log")
    _pareto(panels[-1], result, figure_of)
    panels[0].set(ylabel="test accuracy, %" if accurate else "test loss")
    for panel in panels:
        panel.grid(alpha=0.25)
    for number, row in enumerate(result["rows"]):
        panels[0].plot([], [], ".-", color=f"C{number}", label=row["name"])
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize="small", frameon=False)
    return figure


def _accuracy(point: Mapping[str, Any]) -> tuple[float, float]:
    return 100 * point["top1"], 100 * (point["top1_error"] or 0.0)


def _loss(point: Mapping[str, Any]) -> tuple[float, float]:
    return point["loss"], point["loss_error"] or 0.0


def _curve(panel: Axes, places: list[float], figures: list[tuple[float, float]], colour: str) -> None:
    means = [mean for mean, _ in figures]
    panel.plot(places, means, ".-", color=colour, lw=1)
    low, high = ([mean + side * error for mean, error in figures] for side in (-1, 1))
    panel.fill_between(places, low, high, color=colour, alpha=0.2, lw=0)


def _pareto(panel: Axes, result: Mapping[str, Any], figure_of: Callable[[Mapping[str, Any]], tuple[float, float]]) -> None:
    """Draw the last evaluation of every contender over its bytes, and the Pareto front as a step function."""
    ends = [(row["curve"][-1]["nbytes"] / 1e6, *figure_of(row["curve"][-1])) for row in result["rows"]]
    for number, (place, mean, error) in enumerate(ends):
        panel.errorbar([place], [mean], [error], fmt="o", color=f"C{number}", capsize=3, ms=5)
    best = [row["curve"][-1] for row in front(result["rows"])]
    panel.step([point["nbytes"] / 1e6 for point in best], [figure_of(point)[0] for point in best], "k--", where="post", lw=0.8)
    panel.set(xlabel="MB through a worker's link by the end", xscale="log", title="Pareto front")
