"""Rows of results from trials: median step times and quartiles, ratios within each round, and the tables and plot of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from operator import sub, truediv
from pathlib import Path
from typing import Any

from psnode.bench.contest.contender_run import ContenderRun
from psnode.bench.contest.contenders import Label, alone_name

_WIDTH = 170  # width of a table that is written to a file
_HEADS = (
    "step, ms", "quartiles", "- floor", "/ floor", "hidden", "/ best DDP", "/ unshaped DDP", "out, MB", "in, MB", "all, MB",
    "booked",
)  # fmt: skip
_LEGEND = (
    "step: median of the rounds' medians; hidden: 1 - (step - floor) / exchange alone; out, in: of a worker's interface a step, "
    "all: out of all hosts; booked: psnode's own accounts over what the interfaces counted without the headers of packets"
)


def row(label: Label, rounds: Sequence[ContenderRun | None], target: float | None) -> dict[str, Any]:
    """Return the row of a contender at one rate, from its runs by round.

    None in `rounds` is a failed round; at least one round must have succeeded. `step_ms`: the median over the rounds of the
    median of each round, and quartiles over all steps. `curves`: for each successful round the points of its `ContenderRun`.
    `to_target`: for each of these rounds the first point with an accuracy of at least `target`.
    """
    trials = [trial for trial in rounds if trial is not None]
    medians = [None if trial is None else 1e3 * statistics.median(trial.steps) for trial in rounds]
    low, _, high = statistics.quantiles([1e3 * step for trial in trials for step in trial.steps], n=4)
    middle = statistics.median(median for median in medians if median is not None)
    return {
        "name": label.name,
        "kind": label.kind,
        "step_ms": {"median": middle, "low": low, "high": high, "rounds": medians},
        "bytes": {
            field: statistics.fmean(getattr(trial, field) for trial in trials) for field in ("sent", "received", "sent_by_all")
        },
        "booked": None if trials[0].booked is None else statistics.fmean(trial.booked or 0.0 for trial in trials),
        "top1": [trial.curve[-1].top1 for trial in trials if trial.curve],
        "to_target": [_reached(trial, target) for trial in trials if trial.curve] if target is not None else [],
        "curves": [[point._asdict() for point in trial.curve] for trial in trials],
    }


def _reached(trial: ContenderRun, target: float) -> dict[str, Any] | None:
    return next((point._asdict() for point in trial.curve if point.top1 >= target), None)


def with_ratios(rates: Mapping[str, Sequence[dict[str, Any]]]) -> None:
    """Add `ratios` to every row: its step time relative to the floor, to the best DDP at the same rate, and to unshaped fp32 DDP.

    Also add `exposed_ms`, the step time minus that of the floor, and `hidden`, the share of the exchange that does not lengthen
    the step: 1 - (step - floor) / exchange alone. The floor is the row without communication. Each figure is a median over the
    rounds; None if a row to compare with was not measured.
    """
    unshaped = next((row for row in rates.get("none", ()) if row["name"].startswith("DDP fp32")), None)
    for rows in rates.values():
        peers = [row for row in rows if row["kind"] == "ddp"]
        others = {
            "floor": next((row for row in rows if row["kind"] == "floor"), None),
            "best_ddp": min(peers, key=lambda row: float(row["step_ms"]["median"]), default=None),
            "unshaped_ddp": unshaped,
        }
        for each in rows:
            each["ratios"] = {name: _median(truediv, each, other) for name, other in others.items()}
            each["exposed_ms"] = _median(sub, each, others["floor"])
            name = alone_name(each["name"].removeprefix("psnode "))
            alone = next((row for row in rows if row["kind"] == "alone" and row["name"] == name), None)
            each["hidden"] = _median(lambda step, floor, exchange: 1 - (step - floor) / exchange, each, others["floor"], alone)


def _median(function: Callable[..., float], *rows: dict[str, Any] | None) -> float | None:
    """Return the median over the rounds of `function`, applied to the step times of `rows` in the same round.

    Rounds in which a row failed are left out. None if a row is missing or no round is left.
    """
    found = [row["step_ms"]["rounds"] for row in rows if row is not None]
    rounds = [steps for steps in zip(*found, strict=False) if None not in steps] if len(found) == len(rows) else []
    return statistics.median(function(*steps) for steps in rounds) if rounds else None


def show(result: Mapping[str, Any]) -> None:
    """Print a table for every rate."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)
    ground = result["ground"]
    for rate, found in result["rates"].items():
        table = Table(title=_title(ground, rate), caption=f"{result['cpu']}, {result['cores']} cores, {result['date']}")
        table.add_column("", overflow="fold")
        heads = _heads(result)
        for head in heads:
            table.add_column(head, justify="right", no_wrap=True)
        for each in found["rows"]:
            table.add_row(each["name"], *_cells(each)[: len(heads)])
        console.print(table)
        for name, error in found["failed"].items():
            console.print(f"failed: {name}: {error}", markup=False)
    console.print(_LEGEND)
    console.print(", ".join(f"{name} {version}" for name, version in result["versions"].items()), markup=False)


def _title(ground: Mapping[str, Any], rate: str) -> str:
    return f"{ground['network']}, {ground['dataset']}, {ground['workers']} workers x {ground['batch']}, links of {rate}"


def _heads(result: Mapping[str, Any]) -> list[str]:
    accuracy = ["top1, %"] if result["ground"]["evaluate_every"] else []
    return [*_HEADS, *accuracy, *(["to target, s"] if result["target"] else [])]


def _cells(each: Mapping[str, Any]) -> list[str]:
    step, nbytes, ratios = each["step_ms"], each["bytes"], each["ratios"]
    cells = [f"{step['median']:.1f}", f"{step['low']:.1f}-{step['high']:.1f}"]
    cells.append("" if each["exposed_ms"] is None else f"{each['exposed_ms']:.1f}")
    shares = (ratios["floor"], each["hidden"], ratios["best_ddp"], ratios["unshaped_ddp"])
    cells += ["" if share is None else f"{share:.2f}" for share in shares]
    cells += [f"{nbytes[name] / 1e6:.3f}" for name in ("sent", "received", "sent_by_all")]
    cells.append("" if each["booked"] is None else f"{each['booked']:.4f}")
    cells.append(" ".join(f"{100 * top1:.2f}" for top1 in each["top1"]))
    if each["top1"]:
        cells.append(" ".join("never" if point is None else f"{point['seconds']:.1f}" for point in each["to_target"]))
    return cells


def markdown(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the tables of `results` as Markdown for docs/results."""
    lines = []
    for result in results:
        ground = result["ground"]
        heads = _heads(result)
        for rate, found in result["rates"].items():
            goodput = found["least_goodput_mbit"]
            lines += [
                f"### {ground['network']}, {ground['dataset']}, {ground['workers']} workers x {ground['batch']}, links of {rate}"
            ]
            lines += ["", f"Goodput of the slowest link: {min(goodput):,.1f} to {max(goodput):,.1f} Mbit/s.", ""]
            lines += ["| | rounds | " + " | ".join(heads) + " |", "|---|" + "---:|" * (1 + len(heads))]
            for each in found["rows"]:
                rounds = sum(median is not None for median in each["step_ms"]["rounds"])
                lines.append(f"| {each['name']} | {rounds} | " + " | ".join(_cells(each)[: len(heads)]) + " |")
            lines += [f"| {name} | | failed: {error} |" for name, error in found["failed"].items()] + [""]
    result = results[0]
    lines += [_LEGEND + ".", "", f"{result['cpu']}, {result['cores']} cores, {result['date'][:10]}; "]
    lines[-1] += ", ".join(f"{name} {version}" for name, version in result["versions"].items()) + "."
    return "\n".join(lines) + "\n"


def plot(result: Mapping[str, Any], path: Path) -> None:
    """Plot test accuracy over time and over bytes: a row of panels for each rate, a line for each contender's first round."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    rates = result["rates"]
    figure = Figure(figsize=(12, 4.5 * len(rates)), layout="constrained")
    for panels, (rate, found) in zip(figure.subplots(len(rates), 2, squeeze=False), rates.items(), strict=True):
        axes = (("seconds", 1.0, "seconds of training"), ("nbytes", 1e-6, "MB sent by all hosts"))
        for panel, (field, unit, label) in zip(panels, axes, strict=True):
            for each in found["rows"]:
                points = next(iter(each["curves"]), ())
                if points:
                    panel.plot([p[field] * unit for p in points], [100 * p["top1"] for p in points], ".-", label=each["name"])
            panel.set(xscale="log", xlabel=label, ylabel="test accuracy, %", title=f"links of {rate}")
            panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            panel.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            panel.xaxis.set_minor_formatter(NullFormatter())
    entries = {label: line for panel in figure.axes for line, label in zip(*panel.get_legend_handles_labels(), strict=True)}
    figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=2, fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
