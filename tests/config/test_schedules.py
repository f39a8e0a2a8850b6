"""Schedules compared with their closed forms, which these tests state independently."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import lr_scheduler

from psnode.config import Config, settings
from psnode.config.schedules import (
    OWN,
    SCHEDULES,
    Schedule,
    constant,
    cosine,
    learning_rate,
    multistep,
    poly,
    shrink,
    staircase,
    warmup,
)
from psnode.errors import ConfigurationError

LR = 0.1
STEPS_PER_EPOCH = 7
TOTAL = 70


def values(config: Config, steps: int = TOTAL) -> list[float]:
    schedule = learning_rate(config, STEPS_PER_EPOCH)
    return [schedule(step) for step in range(steps)]


def test_every_choice_of_the_setting_has_a_schedule() -> None:
    assert {*SCHEDULES, OWN} == set(settings()["lr_schedule"].rules.choices)


def test_constant_stays() -> None:
    assert values(Config(lr=LR)) == [LR] * TOTAL


def test_shrink_multiplies_once_an_epoch() -> None:
    expected = [LR * 0.5**epoch for epoch in range(10) for _ in range(STEPS_PER_EPOCH)]
    np.testing.assert_allclose(values(Config(lr=LR, lr_schedule="shrink", lr_shrinkage=0.5)), expected, rtol=1e-12)


def test_multistep_falls_with_the_first_step_after_each_milestone() -> None:
    config = Config(lr=LR, lr_schedule="multistep", lr_milestones=(2, 5), lr_gamma=0.1)
    expected = [LR] * 14 + [0.1 * LR] * 21 + [0.01 * LR] * 35
    np.testing.assert_allclose(values(config), expected, rtol=1e-12)


def test_cosine_starts_at_lr_is_half_in_the_middle_and_ends_at_zero() -> None:
    schedule = cosine(LR, 100)
    assert schedule(0) == LR
    assert schedule(50) == pytest.approx(LR / 2)
    assert schedule(25) == pytest.approx(LR * (1 + math.sqrt(0.5)) / 2)
    assert schedule(100) == pytest.approx(0, abs=1e-18)
    assert schedule(1000) == schedule(100)


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_poly_is_the_power_of_what_is_left(power: float) -> None:
    config = Config(lr=LR, lr_schedule="poly", lr_power=power, max_steps=TOTAL)
    np.testing.assert_allclose(values(config), LR * (np.arange(TOTAL, 0, -1) / TOTAL) ** power, rtol=1e-12)


def test_poly_never_leaves_the_real_numbers_after_its_end() -> None:
    assert poly(LR, 0.5, 10)(11) == 0.0


def test_cosine_and_poly_end_with_whichever_of_steps_and_epochs_comes_first() -> None:
    by_steps = Config(lr=LR, lr_schedule="poly", max_steps=14, epochs=10)
    by_epochs = Config(lr=LR, lr_schedule="poly", max_steps=1000, epochs=2)
    assert values(by_steps) == values(by_epochs)


def test_warmup_is_a_ramp_that_reaches_the_schedule_with_its_last_step() -> None:
    config = Config(lr=LR, warmup_epochs=2)
    np.testing.assert_allclose(values(config)[:14], LR * np.arange(1, 15) / 14, rtol=1e-12)
    assert values(config)[13:] == [LR] * (TOTAL - 13)


def test_warmup_moves_no_milestone() -> None:
    plain = Config(lr=LR, lr_schedule="multistep", lr_milestones=(3,))
    warm = Config(lr=LR, lr_schedule="multistep", lr_milestones=(3,), warmup_epochs=1)
    assert values(plain)[7:] == values(warm)[7:]


def test_staircase_ends_with_its_last_value() -> None:
    schedule = staircase((0.25, 0.0625, 0.001), 2)
    assert [schedule(step) for step in range(8)] == [0.25, 0.25, 0.0625, 0.0625, 0.001, 0.001, 0.001, 0.001]


def torchs(scheduler: Callable[[torch.optim.Optimizer], Any], steps: int = TOTAL) -> list[float]:
    """Return the learning rates of `steps` steps of one of torch's schedulers."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], LR)
    found, schedule = [], scheduler(optimizer)
    for _ in range(steps):
        found.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        schedule.step()
    return found


def warm_stable_decay(optimizer: torch.optim.Optimizer) -> Any:
    """Return a scheduler of torch with ten steps of warm-up, 39 constant steps, and 21 steps down to a tenth."""
    parts = [
        lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 9),
        lr_scheduler.ConstantLR(optimizer, 1.0, 1),
        lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 21),
    ]
    return lr_scheduler.SequentialLR(optimizer, parts, [10, TOTAL - 21])


AS_TORCH: dict[str, tuple[dict[str, Any], Callable[[torch.optim.Optimizer], Any]]] = {
    "shrink": ({"lr_shrinkage": 0.5, "lr_shrink_steps": 9}, lambda o: lr_scheduler.StepLR(o, 9, 0.5)),
    "multistep": ({"lr_milestone_steps": (11, 40)}, lambda o: lr_scheduler.MultiStepLR(o, [11, 40])),
    "cosine": ({"lr_end_factor": 0.1}, lambda o: lr_scheduler.CosineAnnealingLR(o, TOTAL, 0.1 * LR)),
    "poly": ({"lr_power": 2.0}, lambda o: lr_scheduler.PolynomialLR(o, TOTAL, 2.0)),
    "constant": ({"warmup_steps": 10}, lambda o: lr_scheduler.LinearLR(o, 0.1, 1.0, 9)),
    "wsd": ({"warmup_steps": 10, "lr_decay_steps": 21, "lr_end_factor": 0.1}, warm_stable_decay),
    "onecycle": ({"lr_end_factor": 4e-6}, lambda o: lr_scheduler.OneCycleLR(o, LR, TOTAL, cycle_momentum=False)),
}


@pytest.mark.parametrize("name", AS_TORCH)
def test_schedules_by_steps_are_torchs(name: str) -> None:
    """Compare schedules with torch's, for runs that end after a number of steps or of epochs."""
    asked, scheduler = AS_TORCH[name]
    for end in ({"max_steps": TOTAL}, {"epochs": TOTAL // STEPS_PER_EPOCH}):
        config = Config(lr=LR, lr_schedule=name, **asked, **end)  # type: ignore[arg-type]
        config.validate()
        np.testing.assert_allclose(values(config), torchs(scheduler), rtol=1e-9, atol=1e-12)


def test_onecycle_with_another_peak_and_start_is_torchs() -> None:
    config = Config(lr=LR, lr_schedule="onecycle", lr_peak=0.1, lr_start_factor=0.5, lr_end_factor=0.05, max_steps=TOTAL)
    expected = torchs(
        lambda o: lr_scheduler.OneCycleLR(o, LR, TOTAL, pct_start=0.1, div_factor=2, final_div_factor=10, cycle_momentum=False)
    )
    np.testing.assert_allclose(values(config), expected, rtol=1e-9)
    for total in (1, 2, 3):  # torch divides by zero for these lengths
        assert all(0 <= rate <= LR for rate in values(Config(lr=LR, lr_schedule="onecycle", max_steps=total), 5))


def test_wsd_decays_over_epochs_or_over_a_tenth_of_the_run() -> None:
    plain = Config(lr=LR, lr_schedule="wsd", max_steps=TOTAL)
    assert values(plain) == pytest.approx([LR] * 64 + [LR * (1 - step / 7) for step in range(1, 7)])
    by_epochs, by_steps = (replace(plain, **{name: count}) for name, count in (("lr_decay_epochs", 2.0), ("lr_decay_steps", 14)))
    assert values(by_epochs) == values(by_steps)
    assert values(replace(plain, lr_decay_steps=1000))[:2] == pytest.approx([LR, LR * (1 - 1 / TOTAL)])


def test_steps_are_counted_from_the_start_of_the_run_whoever_takes_them() -> None:
    """Check that a schedule in steps keeps its rates if the number of workers, and with it the length of an epoch, changes."""
    for asked in ({"lr_schedule": "multistep", "lr_milestone_steps": (20,)}, {"lr_schedule": "shrink", "lr_shrink_steps": 5}):
        config = Config(lr=LR, warmup_steps=10, **asked)  # type: ignore[arg-type]
        assert [learning_rate(config, 12, 9)(step) for step in range(40)] == [
            learning_rate(config, 6)(step) for step in range(40)
        ]


def test_a_schedule_of_the_tasks_own_is_asked_for_the_step_and_checked() -> None:
    config = Config(lr=LR, lr_schedule="task", max_steps=TOTAL, warmup_steps=4)
    own = learning_rate(config, STEPS_PER_EPOCH, own=lambda step, lr, steps_per_epoch, total_steps: lr * step / total_steps)
    expected = [LR * step / TOTAL * min(1, (step + 1) / 4) for step in range(TOTAL)]
    assert [own(step) for step in range(TOTAL)] == pytest.approx(expected)
    with pytest.raises(ConfigurationError, match=r"--lr-schedule task needs a schedule of the task's own"):
        learning_rate(config, STEPS_PER_EPOCH)
    for bad in (-0.1, math.nan, math.inf, None, "fast"):
        wrong = learning_rate(config, STEPS_PER_EPOCH, own=lambda step, bad=bad, **known: bad)  # type: ignore[misc]
        with pytest.raises(ConfigurationError, match=r"learning rate of step 3 is .*: it must be a number from 0 on"):
            wrong(3)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"warmup_epochs": 1.0, "warmup_steps": 5}, "--warmup-epochs and --warmup-steps both"),
        ({"lr_schedule": "onecycle", "warmup_steps": 5}, "onecycle has a warm-up of its own"),
        (
            {"lr_schedule": "wsd", "lr_decay_epochs": 1.0, "lr_decay_steps": 5},
            "--lr-decay-epochs and --lr-decay-steps say the same",
        ),
        (
            {"lr_schedule": "multistep", "lr_milestones": (1,), "lr_milestone_steps": (5,)},
            "--lr-milestones and --lr-milestone-steps",
        ),
        ({"lr_schedule": "multistep", "lr_milestone_steps": (5, 5)}, "--lr-milestone-steps must be rising steps"),
        (
            {"lr_schedule": "shrink", "lr_end_factor": 0.1},
            "--lr-end-factor needs --lr-schedule cosine or poly or wsd or onecycle",
        ),
    ],
)
def test_settings_of_a_schedule_that_contradict_each_other_are_refused(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Config(lr=LR, **asked).validate()


@given(
    st.sampled_from([constant(LR), shrink(LR, 0.9, 5), multistep(LR, 0.1, [3, 9]), cosine(LR, 50), poly(LR, 2.0, 50)]),
    st.integers(0, 10**6),
    st.integers(1, 100),
)
def test_no_schedule_rises_or_leaves_its_bounds_and_warmup_stays_below(schedule: Schedule, step: int, ramp: int) -> None:
    assert 0 <= schedule(step + 1) <= schedule(step) <= LR
    assert warmup(schedule, ramp)(step) <= schedule(step)
