"""Plain lines of progress: which steps print one, and how much of the run remains."""

from __future__ import annotations

from dataclasses import replace

import pytest

from psnode.master.lines.progress import Fanout, Lines
from psnode.records.metrics import Seconds, StepRecord


def record(step: int) -> StepRecord:
    """Return the record of a 20 ms step of two workers with 1000 coordinates, which sent an eighth of float32
    in both directions.
    """
    seconds = Seconds(0.02, 0, 0, 0, 0, 0, 0)
    return StepRecord(step, step / 10, 2.5, 0.1, 2, 2, 1000, 1000, 0, 100.0, seconds, None, {"top1": 0.25})


def test_every_tenth_step_the_first_and_the_last_have_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    view = Lines(1000, 23, 10)
    for step in range(1, 24):
        view.write(record(step))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == ["1/23", "10/23", "20/23", "23/23"]
    assert lines[1] == "step 10/23  epoch 1.00  loss 2.5000  top1  25.0 %  20.0 ms/step  ratio 8.0"


def test_metrics_that_psnode_does_not_know_are_shown_by_their_names(capsys: pytest.CaptureFixture[str]) -> None:
    view = Lines(1000, 1, 10)
    view.write(replace(record(1), metrics={"bits_per_character": 2.34567, "top1": 0.5, "top5": 0.75}))
    view.write(replace(record(1), metrics={"top5": 0.75}))
    first, second = capsys.readouterr().out.splitlines()
    assert "loss 2.5000  bits_per_character 2.346  top1  50.0 %  20.0 ms/step" in first
    assert "loss 2.5000  top5 0.75  20.0 ms/step" in second


def test_a_run_that_becomes_longer_says_so_to_all_who_watch(capsys: pytest.CaptureFixture[str]) -> None:
    with Fanout(Lines(1000, 23, 10), Lines(1000, 23, 10)) as views:
        views.extend(31)
        views.write(record(23))
        views.write(record(31))
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == ["31/31", "31/31"]
