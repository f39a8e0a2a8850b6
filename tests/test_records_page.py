"""docs/records.md names exactly the fields of the records and the events."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from psnode.evaluator import Evaluation
from psnode.records.metrics import Seconds, StepRecord, Summary

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "records.md").read_text()


def described(heading: str) -> set[str]:
    """Return the names in the first column of the tables under a heading."""
    section = PAGE.split(f"\n## {heading}")[1].split("\n## ")[0]
    return {name for line in re.findall(r"^\| (`.*?) \|", section, re.M) for name in re.findall(r"`([^`]+)`", line)}


def test_all_fields_are_described() -> None:
    assert described("metrics.jsonl") == {field.name for kind in (StepRecord, Seconds) for field in fields(kind)}
    assert described("summary.json") == {field.name for field in fields(Summary)}
    assert described("evaluations.jsonl") == {field.name for field in fields(Evaluation)}


def test_all_events_are_described() -> None:
    sources = [path.read_text() for path in (ROOT / "psnode" / "master").rglob("*.py")]
    told = {name for text in sources for name in re.findall(r"events\.tell\(\s*\"([^\"]+)\"", text)}
    told |= {name for text in sources for name in re.findall(r"tell=lambda reason: events\.tell\(\"([^\"]+)\"", text)}
    told |= {name for text in sources for name in re.findall(r"self\._do_without\(rank, \"([^\"]+)\"", text)}
    assert len(told) > 15
    assert described("events.jsonl") == told
