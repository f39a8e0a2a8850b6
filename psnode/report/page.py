"""The page of `psnode report`: a self-contained file about one or more runs."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from xml.etree.ElementTree import Element

import psnode
from psnode.errors import ConfigurationError
from psnode.records.metrics import write_atomically
from psnode.report import comparisons, critical_path_section, rank_links, tables
from psnode.report.curves import figures, strip
from psnode.report.elements import BEGINNING, Content, code, document, e
from psnode.report.run import Run
from psnode.report.steps import AXES
from psnode.report.variants import Variant, each_run, variants


def render(runs: Sequence[Run], *, each: bool = False) -> bytes:
    """Return the page about `runs` in UTF-8.

    Problems with reading a run are added to its `problems`, which the page shows. Completed runs that differ only in their
    seeds are drawn as one line, unless `each` is True.
    """
    style = code("style", _source("report.css"))
    script = code("script", _source("report.js"))
    digest = base64.b64encode(hashlib.sha256((script.text or "").encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs"
    return document(f"psnode: {title}", policy, style, _main(title, runs, variants(runs, each=each)), script)


def _source(name: str) -> str:
    return resources.files("psnode.report").joinpath(name).read_text()


def _main(title: str, runs: Sequence[Run], found: Sequence[Variant]) -> list[Element]:
    alone = each_run(found)
    paths = critical_path_section.section(alone)  # made first, since it may add problems
    written = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
    heading = e("header", e("h1", title), e("p", f"psnode {psnode.__version__}, {written} UTC"))
    sections = [
        _section("overview", "Overview", *_overview(found, alone), *_problems(runs)),
        _curves(runs, found),
        _section(
            "time",
            "Parts of a step's time",
            e("p", "They overlap, so that their sum is more than the step."),
            comparisons.times(found),
            tables.predictions(alone),
        ),
        _section("path", "Critical path", *paths) if paths else None,
        _section("links", "Scheme and links", comparisons.schemes(found), comparisons.links(found), *rank_links.sections(found)),
        _events(runs, alone),
        _settings(found),
        _section("plans", "Plan", *_plans(found)),
        _section("hosts", "Hosts", *hosts) if (hosts := tables.hosts(runs)) else None,
    ]
    return [heading, e("main", *sections)]


def _overview(found: Sequence[Variant], alone: Sequence[Variant]) -> list[Element]:
    """Return the table of the variants `found`. If a variant has several runs, also return a table of all runs."""
    if len(alone) == len(found):
        return [tables.overview("The runs", found)]
    caption = "The runs; of runs that differ by their seeds alone the mean, and for losses and accuracy the standard error"
    inner = e("details", e("summary", f"Each of the {len(alone)} runs"), tables.overview("Each run", alone))
    return [tables.overview(caption, found), inner]


def _plans(found: Sequence[Variant]) -> list[Element]:
    shown = [(variant, variant.first.plan) for variant in found]
    return [e("details", e("summary", variant.name), tables.plan(variant.name, plan)) for variant, plan in shown if plan]


def _section(name: str, title: str, *content: Content) -> Element:
    return e("section", e("h2", title), *content, id=name)


def _problems(runs: Sequence[Run]) -> list[Element]:
    found = [problem for run in runs for problem in run.problems]
    return [e("ul", *(e("li", problem) for problem in found), class_="problems")] if found else []


def _curves(runs: Sequence[Run], found: Sequence[Variant]) -> Element:
    drawn = figures(found)
    if not drawn:
        return _section("curves", "Curves", e("p", "No step is recorded yet."))
    switch: list[Content] = []
    for axis in AXES:
        box = e("input", type="radio", name="axis", id=f"axis-{axis}", value=axis)
        if axis == AXES[0]:
            box.set("checked", "")
        switch += [box, e("label", axis, for_=f"axis-{axis}")]
    notes = [e("p", "A line through more than 160 steps shows the mean of neighbours, and its band their minimum and maximum.")]
    if len(runs) > len(found):
        seeds = "A line of several seeds shows their mean, and its band reaches from the lowest to the highest of them."
        notes.append(e("p", f"{seeds} A line for each run: psnode report --each."))
    if not any(run.evaluations for run in runs):
        notes.append(
            e(
                "p",
                "Nothing has been evaluated yet: psnode evaluate measures the checkpoints of a run, "
                "and s.evaluated(...) reports those of a session.",
            )
        )
    if any(run.events for run in runs):
        drawn.append(e("figure", e("figcaption", e("strong", "Events")), *strip(runs)))
    keys = e("p", *(comparisons.named(variant) for variant in found), class_="keys")
    return _section(
        "curves", "Curves", e("span", "over", class_="over"), *switch, keys, e("div", *drawn, class_="panels"), *notes
    )


def _events(runs: Sequence[Run], alone: Sequence[Variant]) -> Element:
    told = tables.events(alone) if any(run.events for run in runs) else e("p", "None.")
    return _section("events", "Faults and events", told)


def _settings(found: Sequence[Variant]) -> Element:
    told = [variant for variant in found if variant.first.settings]
    every = [e("details", e("summary", f"All settings of {each.name}"), tables.settings(each)) for each in told]
    return _section("settings", "Settings", comparisons.differences(found) if len(found) > 1 else None, *every)


def write(runs: Sequence[Run], path: Path, *, each: bool = False) -> None:
    """Write the page about `runs` to `path`. If `each` is True, every run has a line of its own.

    Raises ConfigurationError if the file cannot be written, or if `path` is an existing file that is not such a page.
    """
    content = render(runs, each=each)
    try:
        if path.exists():
            with path.open("rb") as file:
                if file.read(len(BEGINNING)) != BEGINNING:
                    raise ConfigurationError(f"{path} exists and is not a page: name another file with -o")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}; name another file with -o") from error
