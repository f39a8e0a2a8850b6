"""The page: its contents for all kinds of runs; text from a run stays text."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from psnode.cli import main
from psnode.report.chart import scale_of
from psnode.report.elements import MOST_CELLS
from psnode.report.page import render
from psnode.report.run import Run, read, read_all
from psnode.report.steps import MOST_POINTS
from tests.report.conftest import CONFIG, lines, record, write_run

EVIL = "<script>alert(1)</script>\"'><img src=http://example.invalid/x onerror=alert(2)>&lt;\x1b]0;t\x07\ud800</style></title>"


class Page(HTMLParser):
    """The elements of a page, and its text by the id of the section."""

    def __init__(self, content: bytes) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text: dict[str, str] = {}
        self.section = ""
        self.feed(content.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag == "section":
            self.section = dict(attrs)["id"] or ""

    def handle_data(self, data: str) -> None:
        self.text[self.section] = self.text.get(self.section, "") + data + " "


def page(*runs: Run) -> Page:
    return Page(render(list(runs)))


def event(step: int, name: str, **fields: Any) -> dict[str, Any]:
    return {"time": 1.7e9, "step": step, "event": name, "rank": None, "reason": "", **fields}


def test_every_part_of_a_run_is_there(trained: Path) -> None:
    found = page(read(trained))
    assert list(found.text)[1:] == ["overview", "curves", "time", "path", "links", "events", "settings", "plans", "hosts"]
    for words in ("Training loss", "Test loss", "Test accuracy (top1)", "Bytes up per step"):
        assert words in found.text["curves"]
    assert "bounded by worker" in found.text["path"] or "bounded by the master" in found.text["path"]
    assert "completed" in found.text["overview"]
    assert "identity" in found.text["plans"]
    assert "None." in found.text["events"]


def test_words_of_a_hostile_run_stay_words(tmp_path: Path) -> None:
    scheme = CONFIG["scheme"] | dict.fromkeys(("name", "codec", "feedback", "aggregator", "downlink"), EVIL)
    plan = {"tensors": [[EVIL, [10, 10]]], "groups": [[[EVIL, 0, [100]]]]}
    changes = {"config": {EVIL: EVIL, "lr": EVIL}, "scheme": scheme, "plan": plan, "versions": {EVIL: EVIL}, "psnode": EVIL}
    path = write_run(tmp_path / "<img src=x onerror=alert(3)>", [record(1, metrics={EVIL: 1.0}), record(2)], **changes)
    lines(path / "events.jsonl", [event(1, EVIL, reason=EVIL, rank=EVIL, time=EVIL)])
    lines(path / "evaluations.jsonl", [{"step": 1, "loss": 1, "metrics": {EVIL: 2}}])
    (path / "summary.json").write_text(json.dumps({"stop_reason": EVIL, "exit_code": EVIL}))
    (path / "machines.json").write_text(json.dumps({"ranks": {EVIL: {"host": EVIL, "cores": EVIL, "arithmetic": {EVIL: EVIL}}}}))
    spans = [
        {"name": EVIL, "ph": "X", "pid": 0, "tid": 1, "ts": 2e6 * k, "dur": 1e6, "args": {EVIL: EVIL, "version": k}}
        for k in (1, 2, 3)
    ]
    spans += [{**span, "name": "downlink"} for span in spans]
    (path / "timeline.json").write_text(json.dumps({"traceEvents": [EVIL, *spans]}))
    other = write_run(tmp_path / "other", [record(1)])
    run = read(path)
    content = render([run, read(other)])
    found = Page(content)
    assert run.problems == []
    assert (found.tags.count("script"), found.tags.count("style")) == (1, 1)
    assert not {"img", "iframe", "link", "object", "embed", "a", "form", "base"} & set(found.tags)
    assert not [name for name, _ in found.attributes if name.startswith("on") or name in ("src", "href", "action")]
    assert b"\x1b" not in content and b"\x07" not in content
    for section in ("overview", "curves", "path", "links", "events", "settings", "plans", "hosts"):
        assert "<script>alert(1)</script>" in found.text[section], section


def test_nothing_on_the_page_names_another_place(trained: Path) -> None:
    content = render([read(trained)])
    assert b"http:" not in content and b"https:" not in content and b"url(" not in content and b"@import" not in content
    assert b"default-src 'none'" in content


def test_runs_of_unlike_tasks_are_compared(tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", [record(k, metrics={"top1": 0.5}) for k in (1, 2)])
    two = write_run(tmp_path / "two", [record(k, metrics={"perplexity": 9.0}) for k in range(1, 50)], workers=5)
    lines(two / "evaluations.jsonl", [{"step": 40, "loss": 2.0, "top1": None, "metrics": {"perplexity": 8.0}}])
    found = page(*read_all([one, two]))
    for words in ("Training accuracy (top1)", "Training perplexity", "Test perplexity"):
        assert words in found.text["curves"]
    assert "Where the runs differ" in found.text["settings"]
    assert "workers" in found.text["settings"]


def test_only_settings_that_differ_are_in_the_differences(tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", [record(1)], config={"lr": 0.1, "network": "FC", "train_dir": "one"})
    two = write_run(tmp_path / "two", [record(1)], config={"lr": 0.2, "network": "FC", "train_dir": "two", "seed": 3})
    words = page(*read_all([one, two])).text["settings"].split("All settings of")[0]
    assert "lr" in words and "0.1" in words and "0.2" in words and "seed" in words and "not recorded" in words
    assert "network" not in words and "train_dir" not in words


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_run_that_has_hardly_begun_has_a_page(tmp_path: Path, steps: int) -> None:
    found = page(read(write_run(tmp_path / "run", [record(k) for k in range(1, steps + 1)])))
    assert ("No step is recorded yet." in found.text["curves"]) is (steps == 0)
    assert not any("nan" in value or "inf" in value.split() for name, value in found.attributes if name in ("points", "x1", "y1"))


@pytest.mark.parametrize(
    ("feedback", "rates", "told"),
    [
        ("ef:rescale=true", (0.1, 0.05, 0.001), True),
        ("ef:decay=0.9,rescale=true", (0.01, 0.1, 0.0), True),
        ("ef:rescale=true", (0.1, 0.1, 0.05), False),
        ("ef", (0.1, 0.05, 0.001), False),
    ],
)
def test_a_norm_that_is_divided_by_a_rate_that_falls_to_zero_is_no_divergence(
    tmp_path: Path, feedback: str, rates: tuple[float, ...], told: bool
) -> None:
    steps = [record(k, lr=lr, gradient_norm=1.0) for k, lr in enumerate(rates, 1)]
    run = read(write_run(tmp_path / "run", steps, scheme=CONFIG["scheme"] | {"feedback": feedback}))
    assert ("This is no divergence" in page(run).text["curves"]) is told


def test_thousands_of_steps_are_few_points(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", [record(k, loss=2 + (-1) ** k) for k in range(1, 2001)])
    lines(path / "events.jsonl", [event(k, "rejected") for k in range(1, 1000)])
    found = page(read(path))
    assert max(len(value.split()) for name, value in found.attributes if name == "points") <= 2 * MOST_POINTS
    assert f"The first {MOST_CELLS} of 999 rows." in found.text["events"]
    assert len(render([read(path)])) < 2_000_000


def test_a_line_of_one_value_and_a_huge_value_have_axes() -> None:
    for values in ([0.0], [5.0], [-5.0], [0.0, 1e300], [1e-300, 1e300], [-1e300, 1e300], []):
        scale = scale_of(values, 100, 0)
        ticks = scale.ticks(5)
        assert 1 <= len(ticks) <= 12, values
        assert all(0 <= scale.at(value) <= 100 for value in [*values, *ticks]), values


def test_a_file_that_is_no_page_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str], trained: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("mine")
    assert main(["report", str(trained), "-o", str(notes)]) == 2
    assert "exists and is not a page" in capsys.readouterr().err
    assert notes.read_text() == "mine"
    output = tmp_path / "new" / "page.html"
    assert main(["report", str(trained), "-o", str(output)]) == 0
    assert main(["report", str(trained), "-o", str(output)]) == 0  # its own page is replaced
    assert capsys.readouterr().out.splitlines()[0] == f"1 run in {output}"


def test_problems_are_told_once_on_the_page_and_on_standard_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_run(tmp_path / "run", [record(1)])
    (path / "summary.json").write_text("{")
    (path / "timeline.json").write_text("{")
    assert main(["report", str(path), "-o", str(tmp_path / "page.html")]) == 0
    told = capsys.readouterr().err.splitlines()
    assert [line.split(" cannot be used")[0] for line in told] == [
        f"psnode: {path}/{name}.json" for name in ("summary", "timeline")
    ]
    assert (tmp_path / "page.html").read_text().count("timeline.json cannot be used") == 1


def test_predicted_steps_stand_beside_measured_ones(tmp_path: Path) -> None:
    runs = []
    for name, prediction in (
        ("near", {"step": 0.1, "measured": 0.103, "off": 0.03, "workers": 2, "source": "trial steps", "binds": "link"}),
        ("none", None),
        ("broken", {"step": 0, "measured": "fast"}),
        ("other", [1, 2]),
        ("evil", {"step": 0.5, "measured": 0.25, "source": EVIL, "binds": {"a": 1}}),
    ):
        path = write_run(tmp_path / name, [record(1)])
        (path / "summary.json").write_text(json.dumps({"exit_code": 0, "prediction": prediction}))
        runs.append(read(path))
    found = page(*runs)
    told = " ".join(found.text["time"].split("Predicted steps")[1].split())
    for row in ("near 100 ms 103 ms +3.0 % link trial steps", "500 ms 250 ms -50.0 %"):
        assert row in told
    assert not {"none", "broken", "other"} & set(told.split())
    assert (found.tags.count("script"), found.tags.count("style")) == (1, 1)
    assert "Predicted steps" not in page(runs[1]).text["time"]
