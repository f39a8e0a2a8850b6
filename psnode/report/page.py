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
from psnode.report import critical_path_section, tables
from psnode.report.curves import figures, strip
from psnode.report.elements import BEGINNING, Content, code, document, e
from psnode.report.run import Run
from psnode.report.steps import AXES


def render(runs: Sequence[Run]) -> bytes:
    """Return the page in UTF-8. Problems with reading a run are added to its `problems`, which the page shows."""
    style = code("style", _source("report.css"))
    script = code("script", _source("report.js"))
    digest = base64.b64encode(hashlib.sha256((script.text or "").encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    names = ", ".join(run.name for run in runs)
    return document(f"psnode: {names}", policy, style, _main(runs), script)


def _source(name: str) -> str:
    return resources.files("psnode.report").joinpath(name).read_text()


def _main(runs: Sequence[Run]) -> list[Element]:
    paths = critical_path_section.section(runs)  # made first, since it may add problems
    written = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
    heading = e(
        "header",
        e("h1", runs[0].name if len(runs) == 1 else f"{len(runs)} runs"),
        e("p", f"psnode {psnode.__version__}, {written} UTC"),
    )
    sections = [
        _section("overview", "Overview", tables.overview(runs), *_problems(runs)),
        _curves(runs),
        _section(
            "time", "Parts of a step's time", e("p", "They overlap, so that their sum is more than the step."), tables.times(runs)
        ),
        _section("path", "Critical path", *paths) if paths else None,
        _section("links", "Scheme and links", tables.links(runs)),
        _events(runs),
        _settings(runs),
        _section(
            "plans", "Plan", *(e("details", e("summary", run.name), tables.plan(run, run.plan)) for run in runs if run.plan)
        ),
        _hosts(runs),
    ]
    return [heading, e("main", *sections)]


def _section(name: str, title: str, *content: Content) -> Element:
    return e("section", e("h2", title), *content, id=name)


def _problems(runs: Sequence[Run]) -> list[Element]:
    found = [problem for run in runs for problem in run.problems]
    return [e("ul", *(e("li", problem) for problem in found), class_="problems")] if found else []


def _curves(runs: Sequence[Run]) -> Element:
    drawn = figures(runs)
    if not drawn:
        return _section("curves", "Curves", e("p", "No step is recorded yet."))
    switch: list[Content] = []
    for axis in AXES:
        box = e("input", type="radio", name="axis", id=f"axis-{axis}", value=axis)
        if axis == AXES[0]:
            box.set("checked", "")
        switch += [box, e("label", axis, for_=f"axis-{axis}")]
    notes = [e("p", "A line through more than 160 steps shows the mean of neighbours, and its band their minimum and maximum.")]
    if not any(run.evaluations for run in runs):
        notes.append(e("p", "Nothing has been evaluated yet: psnode evaluate measures the checkpoints of a run."))
    if any(run.events for run in runs):
        drawn.append(e("figure", e("figcaption", e("strong", "Events")), *strip(runs)))
    keys = e("p", *(tables.named(run, number) for number, run in enumerate(runs)), class_="keys")
    return _section(
        "curves", "Curves", e("span", "over", class_="over"), *switch, keys, e("div", *drawn, class_="panels"), *notes
    )


def _events(runs: Sequence[Run]) -> Element:
    if any(run.events for run in runs):
        return _section("events", "Faults and events", tables.events(runs))
    return _section("events", "Faults and events", e("p", "None."))


def _settings(runs: Sequence[Run]) -> Element:
    every = [e("details", e("summary", f"All settings of {run.name}"), tables.settings(run)) for run in runs if run.settings]
    return _section("settings", "Settings", tables.differences(runs) if len(runs) > 1 else None, *every)


def _hosts(runs: Sequence[Run]) -> Element | None:
    found = [table for run in runs if (table := tables.hosts(run)) is not None]
    return _section("hosts", "Hosts", *found) if found else None


def write(runs: Sequence[Run], path: Path) -> None:
    """Write the page to `path`.

    Raises ConfigurationError if the file cannot be written, or if the path has a file of another kind.
    """
    content = render(runs)
    try:
        if path.exists():
            with path.open("rb") as file:
                if file.read(len(BEGINNING)) != BEGINNING:
                    raise ConfigurationError(f"{path} exists and is not a page: name another file with -o")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}; name another file with -o") from error
