"""Tables of a report that compare variants: parts of a step's time, schemes, bytes on links, and settings that differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np

from psnode.config.amounts import amount, proportion
from psnode.records.metrics import Seconds
from psnode.report.elements import Content, e, table
from psnode.report.run import Run
from psnode.report.variants import Variant, as_text, facts_of

_SIDE_BY_SIDE = 4  # maximum number of variants in columns; more variants are in rows
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


def named(variant: Variant) -> Element:
    """Return the short name of a variant, with a sample of its line in front. The title attribute has the whole name."""
    number = variant.number
    key = e("svg", e("line", x1=1, x2=23, y1=6, y2=6, class_=f"line run{number % 8}" + (" again" if number >= 8 else "")))
    key.attrib.update({"viewBox": "0 0 24 12", "class": "key", "aria-hidden": "true"})
    return e("span", key, e("span", variant.short), class_="run", title=variant.name)


def compared(caption: str, variants: Sequence[Variant], rows: Sequence[tuple[Content, Sequence[Content]]]) -> Element:
    """Return a table of quantities of variants. Each of `rows` is the name of a quantity and its value for each variant.

    Up to four variants become columns, so that the values of a quantity are side by side. More variants become rows, so that
    the table is not wider than the page.
    """
    names = [named(variant) for variant in variants]
    if len(variants) <= _SIDE_BY_SIDE:
        return table(caption, ["", *names], ([head, *values] for head, values in rows))
    heads = ["", *(head for head, _ in rows)]
    return table(caption, heads, ([name, *(values[k] for _, values in rows)] for k, name in enumerate(names)))


def times(variants: Sequence[Variant]) -> Element:
    """Return a table of the parts of a step: for each part the median and the first and last decile of its milliseconds.

    A bar shows the part's share of the step.
    """
    rows: list[tuple[Content, list[Content]]] = []
    for part, meaning in _PARTS.items():
        rows.append((e("span", part, e("small", meaning)), [_time(variant, part) for variant in variants]))
    return compared("Milliseconds of a step: median, and from the first to the last tenth", variants, rows)


def _time(variant: Variant, part: str) -> Element | None:
    known = 1e3 * np.concatenate([run.steps.known(f"seconds.{part}") for run in variant.runs])
    whole = np.concatenate([run.steps.known("seconds.step") for run in variant.runs])
    if not known.size or not whole.size:
        return None
    low, middle, high = (float(value) for value in np.quantile(known, [0.1, 0.5, 0.9]))
    share = min(1.0, middle / max(1e3 * float(np.median(whole)), 1e-9))
    bar = e("span", e("span", style=f"width:{100 * share:.1f}%"), class_="bar")
    return e("span", f"{proportion(middle)} ", e("small", f"{proportion(low)}–{proportion(high)}"), bar, class_="time")


def schemes(variants: Sequence[Variant]) -> Element:
    """Return a table of the variants' codecs in both directions, feedback rules and aggregators."""
    rows = []
    for label, name in (("up", "codec"), ("feedback", "feedback"), ("aggregator", "aggregator"), ("down", "downlink")):
        rows.append((label, [as_text(variant.first.scheme.get(name)) for variant in variants]))
    return compared("Scheme", variants, rows)


def links(variants: Sequence[Variant]) -> Element:
    """Return a table of the bytes that the variants sent on their links. The values are means over the runs of a variant."""

    def row(head: str, quantity: Callable[[Run], float | None], text: Callable[[float], str]) -> tuple[str, list[Any]]:
        found = [variant.mean(quantity) for variant in variants]
        return head, [None if value is None else text(value) for value in found]

    rows = [
        row("bytes up, per worker and step", lambda run: _per_worker(run, "uplink_bytes"), amount),
        row("bytes down, per worker and step", lambda run: _per_worker(run, "downlink_bytes"), amount),
        row("control messages, per worker and step", lambda run: _per_worker(run, *_CONTROL), amount),
        row("bits up, per coordinate", _bits, lambda bits: f"{bits:.3g}"),
        row("sent in total", lambda run: run.sent, amount),
        row("float32 / sent", lambda run: run.ratio, proportion),
        row("mean goodput of the job", _goodput, lambda rate: f"{proportion(rate)} Mbit/s"),
    ]
    return compared("Links", variants, rows)


def _per_worker(run: Run, *names: str) -> float | None:
    turns = run.steps.sum("workers")
    told = any(run.steps.known(name).size for name in names)
    return run.steps.sum(*names) / turns if turns and told else None


def _bits(run: Run) -> float | None:
    turns = run.steps.sum("workers")
    return 8 * run.steps.sum("uplink_bytes") / turns / run.plan.size if turns and run.plan and run.plan.size else None


def _goodput(run: Run) -> float | None:
    seconds = run.steps.sum("seconds.step")
    return 8 * run.sent / seconds / 1e6 if seconds else None


def differences(variants: Sequence[Variant]) -> Element | None:
    """Return a table of the settings, parts of the scheme and versions in which variants differ; None without a difference."""
    tables = [facts_of(variant) for variant in variants]
    rows = []
    for name in dict.fromkeys(chain.from_iterable(tables)):
        values = [found.get(name, "not recorded") for found in tables]
        if len(set(values)) > 1:
            rows.append((name, values))
    return compared("Where the runs differ", variants, rows) if rows else None
