"""A resume that moves the end of a schedule reports this, with the next learning rate."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from psnode.config import Config
from psnode.jobs.job import run


def train(train_dir: Path, **changed: Any) -> None:
    settings = {"scheme": "dense", "network": "FC", "batch_size": 32, "local": 1, "lr": 0.1, "threads": 1, "tensorboard": False}
    assert (
        run(Config(train_dir=train_dir, **{**settings, "quiet": True, "resume": (train_dir / "config.json").exists(), **changed}))
        == 0
    )


def rates(train_dir: Path) -> list[float]:
    return [json.loads(line)["lr"] for line in (train_dir / "metrics.jsonl").read_text().splitlines()]


# by schedule: the rate of the step after t of n steps, from the papers
AT: dict[str, Callable[[int, int], float]] = {
    "cosine": lambda t, n: 0.05 * (1 + math.cos(math.pi * t / n)),
    "poly": lambda t, n: 0.1 * (1 - t / n),
    "wsd": lambda t, n: 0.1 * min(1.0, (n - t) / 4),
}
MORE = {"poly": {"lr_power": 1.0}, "wsd": {"lr_decay_steps": 4}}


@pytest.mark.parametrize("schedule", AT)
def test_another_last_step_is_told_with_the_rates_on_both_sides(
    schedule: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    more = {"lr_schedule": schedule, **MORE.get(schedule, {})}
    train(tmp_path, max_steps=8, stop_after=3, **more)
    train(tmp_path, max_steps=8, stop_after=6, **more)
    assert "moves the end" not in capfd.readouterr().err  # neither a stop nor a resume moves the end
    train(tmp_path, max_steps=12, stop_after=7, **more)
    at = AT[schedule]
    found = rates(tmp_path)
    assert found == pytest.approx([*(at(t, 8) for t in range(6)), at(6, 12)])
    told = (
        f"--max-steps or --epochs moves the end of --lr-schedule {schedule} from step 8 to 12: the learning rate of step 7 "
        f"is {found[6]:.4g}, as if that had been the end from the start; that of step 6 was {found[5]:.4g}"
    )
    assert told in capfd.readouterr().err


def test_more_epochs_are_told_and_a_schedule_that_knows_no_end_is_not(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for schedule, told in (("onecycle", True), ("constant", False)):
        train(tmp_path / schedule, epochs=1, batch_size=128, lr_schedule=schedule)
        steps = len(rates(tmp_path / schedule))
        train(tmp_path / schedule, epochs=2, batch_size=128, lr_schedule=schedule, stop_after=steps + 1)
        assert (f"{schedule} from step {steps} to {2 * steps}: the learning rate" in capfd.readouterr().err) is told
