"""Plain lines of progress: which steps print one, and how much of the run remains."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from psnode.master.lines.progress import Bar, Fanout, Lines
from psnode.records.metrics import Seconds, StepRecord


def record(step: int) -> StepRecord:
    """Return the record of a 20 ms step of two workers with 1000 coordinates, which sent an eighth of float32's bytes in
    each direction.
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


@pytest.mark.parametrize(
    ("columns", "last", "shown", "left_out"),
    [
        (200, 1000, ["loss 2.5000", "top1  25.0 %", "20.0 ms/step", "ratio 8.0"], []),
        (80, 1000, ["loss 2.5000", "top1  25.0 %", "20.0 ms/step", "ratio 8.0"], []),
        (80, 1000000, ["loss 2.5000", "top1  25.0 %", "20.0 ms/step"], ["ratio"]),
        (60, 1000, ["loss 2.5000", "top1  25.0 %"], ["ms/step", "ratio"]),
        (45, 1000, ["loss 2.5000"], ["top1", "ms/step", "ratio"]),
        (30, 1000, [], ["loss", "top1", "ms/step", "ratio"]),
    ],
)
def test_a_bar_leaves_out_what_the_terminal_has_no_room_for(
    columns: int, last: int, shown: list[str], left_out: list[str]
) -> None:
    terminal = io.StringIO()
    view = Bar(Console(file=terminal, width=columns, force_terminal=True, color_system=None), 1000, 0, last)
    view.write(record(50))
    view.close()
    line = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue()).replace("\r", "\n").rstrip("\n").splitlines()[-1].rstrip()
    assert re.match(rf"step +50/{last} .* [-\d]:[-\d:]+", line)
    assert len(line) <= columns and "…" not in line
    assert all(text in line for text in shown)
    assert not any(text in line for text in left_out)


def test_a_run_that_becomes_longer_says_so_to_all_who_watch(capsys: pytest.CaptureFixture[str]) -> None:
    with Fanout(Lines(1000, 23, 10), Lines(1000, 23, 10)) as views:
        views.extend(31)
        views.write(record(23))
        views.write(record(31))
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == ["31/31", "31/31"]
