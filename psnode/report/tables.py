"""Tables of a report: an overview of the variants, and their events, predictions, plans, settings and hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any
from xml.etree.ElementTree import Element

from psnode.config.amounts import amount, duration, loss_text, milliseconds, proportion
from psnode.plans.groups import Plan
from psnode.report.comparisons import named
from psnode.report.elements import e, table
from psnode.report.run import Run
from psnode.report.steps import finite
from psnode.report.variants import Variant, as_text, facts_of


def overview(caption: str, variants: Sequence[Variant]) -> Element:
    """Return a table with a row for each variant.

    A row has the scheme, workers, progress, losses and accuracy, bytes sent, time and end.
    """
    heads = ("run", "scheme", "workers", "steps", "loss", "best test loss", "best top1", "sent", "float32 / sent", "time", "end")
    rows = []
    for variant in variants:
        first, sent, ratio = variant.first, variant.mean(lambda run: run.sent), variant.mean(lambda run: run.ratio)
        rows.append([
            named(variant), first.coding, _count(first.workers), _count(first.reached),
            _aside(variant.told(lambda run: run.last("loss"), loss_text)),
            _aside(variant.told(lambda run: run.best_loss, loss_text)),
            _aside(variant.told(lambda run: run.best, lambda share: f"{100 * share:.2f} %")),
            amount(sent or 0.0), None if ratio is None else proportion(ratio),
            duration(variant.mean(lambda run: run.steps.sum("seconds.step")) or 0.0), first.ended,
        ])  # fmt: skip
    return table(caption, heads, rows)


def _aside(told: str | None) -> Element | str | None:
    """Return the mean in the text `told`. If it has a standard error, this follows in smaller type."""
    if told is None or "±" not in told:
        return told
    mean, _, error = told.partition("±")
    return e("span", mean, e("small", f"± {error.strip()}"), class_="figure")


def _count(number: int | None) -> str | None:
    return None if number is None else f"{number:,}"


def events(runs: Sequence[Variant]) -> Element:
    """Return a table of the events of all runs. The events of a run are together, in their order."""
    rows = ([named(each), *_event(event)] for each in runs for run in each.runs for event in run.events)
    return table("Events besides the steps", ("run", "step", "time, UTC", "rank", "event", "reason"), rows)


def _event(event: Mapping[str, Any]) -> list[Any]:
    return [event["step"], _clock(event.get("time")), *(as_text(event.get(name)) for name in ("rank", "event", "reason"))]


def _clock(value: object) -> str | None:
    seconds = finite(value)
    if seconds is None or not 0 <= seconds < 4e9:
        return None
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def predictions(runs: Sequence[Variant]) -> Element | None:
    """Return a table of predicted and measured steps, with a row for each run that has both.

    Returns None if there is no such run.
    """
    rows = []
    for variant in runs:
        for run in variant.runs:
            found = run.summary.get("prediction")
            known = found if isinstance(found, dict) else {}
            step, measured = finite(known.get("step")), finite(known.get("measured"))
            if step is not None and measured is not None and step > 0:
                told = [as_text(known.get(name)) for name in ("binds", "source")]
                rows.append(
                    [named(variant), milliseconds(step), milliseconds(measured), f"{100 * (measured / step - 1):+.1f} %", *told]
                )
    return (
        table("Predicted steps", ("run", "predicted", "measured, median", "longer by", "limited by", "source"), rows)
        if rows
        else None
    )


def plan(name: str, found: Plan) -> Element:
    """Return a table of the plan `found`. It has a row for each segment, with its tensors, shape, size and codec.

    The rows are in the order of groups. Large plans are cut. `name`: the name of the variant.
    """
    rows = []
    for group in found.groups:
        for segment in group.segments:
            tensors = list(found.covering(segment.start, segment.stop)) if len(found.tensors) <= 2000 else []
            names = ", ".join(tensors[:6]) + (f" and {len(tensors) - 6} more" if len(tensors) > 6 else "")
            rows.append(
                [str(group.index), str(segment.index), names, _shape(segment.shape), amount(4 * segment.size), segment.codec]
            )
            if len(rows) > 400:
                break
    heads = ("group", "segment", "tensors", "shape", "as float32", "codec")
    what = f"{len(found.groups)} groups, {len(found.segments)} segments, {found.size:,} coordinates"
    return table(f"Plan of {name}: {what}", heads, rows)


def _shape(shape: Sequence[int]) -> str:
    return " x ".join(f"{length:,}" for length in shape) or "one number"


def settings(variant: Variant) -> Element:
    """Return a table of a variant's settings with the values that were used, and of the versions of its software."""
    return table(f"Settings of {variant.name}", ("setting", "value"), facts_of(variant).items())


def hosts(runs: Sequence[Run]) -> list[Element]:
    """Return a table for each different list of hosts. Consecutive ranks with the same host, cores and arithmetic share a row.

    Runs with the same list share a table.
    """
    found: dict[str, list[str]] = {}
    rows_of: dict[str, list[list[Any]]] = {}
    for run in runs:
        if rows := _hosts(run):
            key = as_text(rows) or ""
            rows_of[key] = rows
            found.setdefault(key, []).append(run.name)
    heads = ("ranks", "host", "cores", "arithmetic")
    return [table(f"Hosts of {_all(names)}", heads, rows_of[key]) for key, names in found.items()]


def _all(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _hosts(run: Run) -> list[list[Any]]:
    """Return the rows of the table of a run's hosts. The list is empty if the run does not record its hosts."""
    ranks = run.machines.get("ranks")
    if not isinstance(ranks, dict):
        return []
    found = [(rank, machine) for rank, machine in ranks.items() if isinstance(machine, dict)]
    alike = groupby(found, key=lambda pair: [as_text(pair[1].get(key)) for key in ("host", "cores", "arithmetic")])
    return [[", ".join(str(rank) for rank, _ in same), *what] for what, same in alike]
