"""Minutes to a loss: trainings by name, the first step with a loss, figures of a page by hand, and curves of hooks."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from psnode.errors import ConfigurationError
from studies.harness import page
from studies.time_to_loss import ROOT, STUDY, Options, Training, first_at_most, minutes

CURVE = [(25, 3.0), (50, 2.1), (75, 2.2), (100, 2.0)]


def test_a_name_may_ask_for_more_steps() -> None:
    options = Options(steps=700)
    assert Training.of("powersgd:4*2", options) == Training("powersgd:4", 1400, options)
    assert Training.of("topk --downlink dense", options) == Training("topk --downlink dense", 700, options)
    with pytest.raises(ConfigurationError, match=r"fp16\*x"):
        Training.of("fp16*x", options)


def test_the_first_step_with_the_loss_counts() -> None:
    assert first_at_most(CURVE, 2.1) == 50
    assert first_at_most(CURVE, 2.0) == 100
    assert first_at_most(CURVE, 1.99) is None


def test_minutes_are_steps_times_the_time_of_a_step() -> None:
    row: dict[str, Any] = {"name": "DDP fp16", "total": 100, "curve": CURVE, "seconds": 0.6, "sent": 1e6}
    assert minutes({**row, "reached": 50}) == pytest.approx(0.5)
    assert minutes({**row, "reached": None}) is None
    result = {
        "date": "2026-01-01", "cpu": "a processor", "cores": 2, "rate": "100mbit", "target": 2.1,
        "rows": [{**row, "reached": 50}, {**row, "name": "DDP powersgd:4", "reached": None}],
    }  # fmt: skip
    assert "| DDP fp16 | 100 | 2.0000 | 1,000,000 | 600 | 50 | 0.5 |" in page(STUDY, result)
    assert "| DDP powersgd:4 | 100 | 2.0000 | 1,000,000 | 600 |  | not reached |" in page(STUDY, result)


def test_losses_of_a_hook_are_evaluated_along_the_training() -> None:
    """Check the two evaluations, and that the one at the end is the same if it is the only one."""
    line = [
        sys.executable, str(ROOT / "scripts" / "hook_losses.py"), "fp16", "--steps", "6", "--batch", "1", "--width", "16",
        "--layers", "1", "--json", "--evaluate-every",
    ]  # fmt: skip
    often, once = (json.loads(subprocess.check_output([*line, every])) for every in ("3", "0"))
    [found], [last] = often["seeds"], once["seeds"]
    assert often["hook"] == "fp16"
    assert [step for step, _ in found["curve"]] == [3, 6]
    assert found["loss"] == found["curve"][-1][1] == last["loss"]
    assert [step for step, _ in last["curve"]] == [6]
