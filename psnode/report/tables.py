"""The tables of a report: how the runs ended, the parts of a step's time, schemes and links, events, plans, settings, hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np

from psnode.config.amounts import amount, duration, proportion
from psnode.config.plain_json import to_json
from psnode.plan.groups import Plan
from psnode.records.metrics import Seconds
from psnode.report.elements import e, table
from psnode.report.run import Run
from psnode.report.steps import finite

_CONTROL = ("uplink_control_bytes", "downlink_control_bytes")
_PARTS = {
    "step": "from one finished update to the next",
    "forward_backward": "workers: computing",
    "encode": "workers: feedback and coding",
    "wait": "workers: waiting for weights",
    "decode": "master: decoding and adding",
    "update": "master: optimizer",
    "downlink": "master: coding and sending weights",
}
assert set(_PARTS) == set(Seconds.__dataclass_fields__)


def named(run: Run, number: int) -> Element:
    """Return the name of a run, preceded by a sample of its line."""
    key = e("svg", e("line", x1=1, x2=23, y1=6, y2=6, class_=f"line run{number % 8}" + (" again" if number >= 8 else "")))
    key.attrib.update({"viewBox": "0 0 24 12", "class": "key", "aria-hidden": "true"})
    return e("span", key, run.name, class_="run")


def _heads(runs: Sequence[Run]) -> list[Element | str]:
    return ["", *(named(run, number) for number, run in enumerate(runs))]


def overview(runs: Sequence[Run]) -> Element:
    """Return a table with a row per run: scheme, workers, progress, loss and accuracy, bytes sent, time, and end."""
    heads = ("run", "scheme", "workers", "steps", "loss", "best top1", "sent", "float32 / sent", "time", "end")
    rows = []
    for number, run in enumerate(runs):
        loss, best = run.last("loss"), run.best
        rows.append([
            named(run, number), _text(run.scheme.get("name")), _count(run.workers), _count(run.reached),
            None if loss is None else f"{loss:.4f}", None if best is None else f"{100 * best:.2f} %", amount(run.sent),
            _ratio(run), duration(run.steps.sum("seconds.step")), run.ended,
        ])  # fmt: skip
    return table("The runs", heads, rows)


def _ratio(run: Run) -> str | None:
    return None if run.ratio is None else proportion(run.ratio)


def _count(number: int | None) -> str | None:
    return None if number is None else f"{number:,}"


def _text(value: Any) -> str | None:
    """Return a recorded value as users type it."""
    if value is None or isinstance(value, str):
        return value
    return to_json(value)


def times(runs: Sequence[Run]) -> Element:
    """Return a table of the parts of a step: median, first and last decile in milliseconds, and a bar for the share of the
    step."""
    rows = []
    for part, meaning in _PARTS.items():
        cells = [_time(run, part) for run in runs]
        rows.append([e("span", part, e("small", meaning)), *cells])
    return table("Milliseconds of a step: median, and from the first to the last tenth", _heads(runs), rows)


def _time(run: Run, part: str) -> Element | None:
    known = 1e3 * run.steps.known(f"seconds.{part}")
    whole = run.steps.known("seconds.step")
    if not known.size or not whole.size:
        return None
    low, middle, high = (float(value) for value in np.quantile(known, [0.1, 0.5, 0.9]))
    share = min(1.0, middle / max(1e3 * float(np.median(whole)), 1e-9))
    bar = e("span", e("span", style=f"width:{100 * share:.1f}%"), class_="bar")
    return e("span", f"{middle:.2f} ", e("small", f"{low:.2f}–{high:.2f}"), bar)


def links(runs: Sequence[Run]) -> Element:
    """Return a table of the codecs in both directions and their results on the links."""
    rows: list[list[Any]] = []
    for label, name in (("up", "codec"), ("feedback", "feedback"), ("aggregator", "aggregator"), ("down", "downlink")):
        rows.append([label, *(_text(run.scheme.get(name)) for run in runs)])
    rows.append(["bytes up, per worker and step", *(_per_worker(run, "uplink_bytes") for run in runs)])
    rows.append(["bytes down, per worker and step", *(_per_worker(run, "downlink_bytes") for run in runs)])
    rows.append(["control messages, per worker and step", *(_per_worker(run, *_CONTROL) for run in runs)])
    rows.append(["bits up, per coordinate", *(_bits(run) for run in runs)])
    rows.append(["sent in total", *(amount(run.sent) for run in runs)])
    rows.append(["float32 / sent", *(_ratio(run) for run in runs)])
    rows.append(["mean goodput of the job", *(_goodput(run) for run in runs)])
    return table("Scheme and links", _heads(runs), rows)


def _per_worker(run: Run, *names: str) -> str | None:
    turns = run.steps.sum("workers")
    told = any(run.steps.known(name).size for name in names)
    return amount(run.steps.sum(*names) / turns) if turns and told else None


def _bits(run: Run) -> str | None:
    turns = run.steps.sum("workers")
    return f"{8 * run.steps.sum('uplink_bytes') / turns / run.plan.size:.3g}" if turns and run.plan and run.plan.size else None


def _goodput(run: Run) -> str | None:
    seconds = run.steps.sum("seconds.step")
    return f"{8 * run.sent / seconds / 1e6:.3g} Mbit/s" if seconds else None


def events(runs: Sequence[Run]) -> Element:
    """Return a table of the events of all runs, those of each run in order."""
    rows = ([named(run, number), *_event(event)] for number, run in enumerate(runs) for event in run.events)
    return table("Events besides the steps", ("run", "step", "time, UTC", "rank", "event", "reason"), rows)


def _event(event: Mapping[str, Any]) -> list[Any]:
    return [event["step"], _clock(event.get("time")), *(_text(event.get(name)) for name in ("rank", "event", "reason"))]


def _clock(value: object) -> str | None:
    seconds = finite(value)
    if seconds is None or not 0 <= seconds < 4e9:
        return None
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def plan(run: Run, found: Plan) -> Element:
    """Return a table with a row per segment, by group: its tensors, shape, size and codec. Large plans are cut."""
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
    return table(f"Plan of {run.name}: {what}", heads, rows)


def _shape(shape: Sequence[int]) -> str:
    return " x ".join(f"{length:,}" for length in shape) or "one number"


def differences(runs: Sequence[Run]) -> Element | None:
    """Return a table of the settings, parts of the scheme and versions in which the runs differ; None if they do not differ."""
    tables = [_facts(run) for run in runs]
    rows = []
    for name in dict.fromkeys(name for table_ in tables for name in table_):
        values = [table_.get(name, "not recorded") for table_ in tables]
        if len(set(values)) > 1:
            rows.append([name, *values])
    return table("Where the runs differ", _heads(runs), rows) if rows else None


def _facts(run: Run) -> dict[str, str]:
    scheme = {f"scheme: {name}": value for name, value in run.scheme.items() if name != "name"}
    versions = {f"version: {name}": value for name, value in run.versions.items()}
    found = {"workers": run.workers, **run.settings, **scheme, **versions}
    return {name: "not set" if value is None else str(_text(value)) for name, value in found.items() if name != "train_dir"}


def settings(run: Run) -> Element:
    """Return a table of all settings as they were used, and of the versions."""
    return table(f"Settings of {run.name}", ("setting", "value"), _facts(run).items())


def hosts(run: Run) -> Element | None:
    """Return a table with a row for consecutive ranks of the same host and arithmetic; None if the run does not record them."""
    ranks = run.machines.get("ranks")
    if not isinstance(ranks, dict) or not ranks:
        return None
    found = [(rank, machine) for rank, machine in ranks.items() if isinstance(machine, dict)]
    rows = []
    for what, same in groupby(found, key=lambda pair: [_text(pair[1].get(key)) for key in ("host", "cores", "arithmetic")]):
        names = [str(rank) for rank, _ in same]
        rows.append([", ".join(names), *what])
    return table(f"Hosts of {run.name}", ("ranks", "host", "cores", "arithmetic"), rows)
