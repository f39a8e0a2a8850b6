"""Schedules against their closed forms, written out here a second time."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psnode.config import Config, settings
from psnode.config.schedules import (
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

LR = 0.1
STEPS_PER_EPOCH = 7
TOTAL = 70


def values(config: Config, steps: int = TOTAL) -> list[float]:
    schedule = learning_rate(config, STEPS_PER_EPOCH)
    return [schedule(step) for step in range(steps)]


def test_every_choice_of_the_setting_has_a_schedule() -> None:
    assert set(SCHEDULES) == set(settings()["lr_schedule"].rules.choices)


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


@given(
    st.sampled_from([constant(LR), shrink(LR, 0.9, 5), multistep(LR, 0.1, [3, 9]), cosine(LR, 50), poly(LR, 2.0, 50)]),
    st.integers(0, 10**6),
    st.integers(1, 100),
)
def test_no_schedule_rises_or_leaves_its_bounds_and_warmup_stays_below(schedule: Schedule, step: int, ramp: int) -> None:
    assert 0 <= schedule(step + 1) <= schedule(step) <= LR
    assert warmup(schedule, ramp)(step) <= schedule(step)
