"""The timeline: spans of every rank in the trace event format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from psnode.errors import WireError
from psnode.records.timeline import Tracer, parse_events, write_timeline


def test_spans_nest_and_keep_their_facts(tmp_path: Path) -> None:
    tracer = Tracer(3, enabled=True)
    with tracer.span("outer", step=7), tracer.span("inner", group=1):
        pass
    events = parse_events(tracer.to_bytes(), 3)
    write_timeline(tmp_path, events, {3: "worker 3"})
    trace = json.loads((tmp_path / "timeline.json").read_bytes())["traceEvents"]
    spans = {event["name"]: event for event in trace if event["ph"] == "X"}
    outer, inner = spans["outer"], spans["inner"]
    assert outer["args"] == {"step": 7}
    assert outer["ts"] <= inner["ts"]
    assert inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"] + 1
    assert {event["args"]["name"] for event in trace if event["ph"] == "M"} >= {"worker 3"}


def test_a_tracer_that_is_not_enabled_keeps_nothing() -> None:
    tracer = Tracer(1, enabled=False)
    with tracer.span("x"):
        pass
    assert tracer.events() == []


def test_a_span_is_recorded_when_its_block_raises() -> None:
    tracer = Tracer(1, enabled=True)
    with pytest.raises(ValueError, match="x"), tracer.span("failing"):
        raise ValueError("x")
    assert [event["name"] for event in tracer.events()] == ["failing"]


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'[{"pid": 2, "name": "x"}]', b"\xff"])
def test_traces_that_are_no_events_of_that_rank_are_refused(content: bytes) -> None:
    with pytest.raises(WireError, match="from rank 1"):
        parse_events(content, 1)
