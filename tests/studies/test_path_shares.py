"""The words for the work that most of a step waits for, from predicted seconds by kind and from a measured timeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from psnode.config.plain_json import to_json
from studies import path_shares
from studies.path_shares import MASTER, MESSAGES, PASSES


@pytest.mark.parametrize(
    ("spent", "word"),
    [
        ({"passes": 3.0, "coding": 2.0, "master": 2.0}, PASSES),
        ({"passes": 3.0, "coding": 1.0, "transport": 1.0, "link": 1.0, "latency": 0.5}, MESSAGES),
        ({"passes": 3.0, "master": 4.0}, MASTER),
    ],
)
def test_a_prediction_waits_for_the_kinds_with_the_most_seconds(spent: dict[str, float], word: str) -> None:
    assert path_shares.predicted(spent) == word


def span(rank: int, name: str, start: float, stop: float, **facts: int) -> dict[str, Any]:
    return {"ph": "X", "pid": rank, "tid": 1, "name": name, "ts": 1e6 * start, "dur": 1e6 * (stop - start), "args": facts}


@pytest.mark.parametrize(
    ("passes", "arrives", "checkpoint", "word"),
    [
        (6.0, 7.0, 0.5, PASSES),  # six seconds of passes, one of a gradient on its way, three of an update
        (2.0, 7.0, 0.5, MESSAGES),
        (2.0, 4.0, 0.5, MASTER),
        (2.0, 7.0, 6.0, MASTER),  # other work of the rank that updates, here a snapshot, counts as its own
    ],
)
def test_a_measured_step_waits_for_the_parts_with_the_most_seconds(
    tmp_path: Path, passes: float, arrives: float, checkpoint: float, word: str
) -> None:
    length = 10 + checkpoint
    events = [
        each
        for step in range(1, 5)
        for begin in [length * step]
        for each in (
            span(1, "forward_backward", begin, begin + passes, step=step),
            span(0, "decode", begin + arrives, begin + arrives + 0.1, sender=1, version=step),
            span(0, "snapshot", begin + arrives + 0.1, begin + arrives + 0.1 + checkpoint),
            span(0, "update", begin + arrives + 0.1 + checkpoint, begin + length, version=step),
        )
    ]
    (tmp_path / "timeline.json").write_text(to_json({"traceEvents": events}))
    assert path_shares.measured(tmp_path, 2) == word
    assert path_shares.measured(tmp_path, 9) is None


def test_a_run_without_a_timeline_has_no_word(tmp_path: Path) -> None:
    assert path_shares.measured(tmp_path, 1) is None
