"""Epochs continue when a run is resumed with another number of workers, checked example by example."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psnode.config import Config
from psnode.config.schedules import learning_rate
from psnode.records.generations import Generation, continued, epoch_offset
from psnode.tasks.data.sampler import Sampler

BATCH = 3
parts = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 6)), min_size=1, max_size=4)


def examples_of(length: int, lengths: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return (epoch, example) for all examples in the order in which a run takes them. `lengths`: the parts of the run, as
    (steps, workers).
    """
    taken, history, done = list[tuple[int, int]](), tuple[Generation, ...](), 0
    for steps, workers in lengths:
        history = continued(history, done, workers)
        moved = epoch_offset(history, length, lambda workers: workers * BATCH)
        samplers = [Sampler(length, rank, workers, BATCH, seed=5, sample_offset=moved) for rank in range(workers)]
        for step in range(done + 1, done + steps + 1):
            for sampler in samplers:
                taken += [(sampler.locate(step)[0], int(index)) for index in sampler.indices(step)[0]]
        done += steps
    return taken


@given(parts, st.integers(18, 70))
def test_no_example_is_taken_twice_in_an_epoch_and_few_are_left_out(lengths: list[tuple[int, int]], length: int) -> None:
    taken = examples_of(length, lengths)
    assert max(Counter(taken).values()) == 1
    epochs = [epoch for epoch, _ in taken]
    assert epochs == sorted(epochs)
    assert set(epochs) == set(range(epochs[-1] + 1))
    most = max(workers for _, workers in lengths) * BATCH  # left out at the end of an epoch, and at every change
    for epoch, found in Counter(epochs).items():
        assert found > length - most * len(lengths) - 1 or epoch == epochs[-1]


def test_without_a_change_nothing_moves() -> None:
    assert epoch_offset([Generation(0, 4)], 100, lambda workers: workers) == 0
    assert epoch_offset([Generation(0, 4), Generation(7, 4)], 100, lambda workers: workers) == 0


def test_half_the_workers_take_twice_the_steps() -> None:
    """Check a change from four workers to two after 9 steps. An epoch of 96 examples has 6 steps of 16, or 12 of 8, so half
    of the second epoch is over.
    """
    assert epoch_offset([Generation(0, 4), Generation(9, 2)], 96, lambda workers: 4 * workers) + 9 == 12 + 6


def test_parts_that_were_undone_are_forgotten() -> None:
    assert continued([], 0, 3) == (Generation(0, 3),)
    assert continued([Generation(0, 3)], 8, 3) == (Generation(0, 3),)
    assert continued([Generation(0, 3), Generation(8, 2)], 8, 3) == (Generation(0, 3),)
    assert continued([Generation(0, 3), Generation(8, 2)], 12, 5) == (Generation(0, 3), Generation(8, 2), Generation(12, 5))
    assert continued([Generation(0, 3), Generation(8, 2)], 0, 4) == (Generation(0, 4),)


@pytest.mark.parametrize(
    "settings",
    [
        {"lr_schedule": "shrink", "lr_shrinkage": 0.5},
        {"lr_schedule": "multistep", "lr_milestones": (2, 4)},
        {"lr_schedule": "cosine"},
        {"lr_schedule": "poly", "lr_power": 2.0},
        {"lr_schedule": "constant", "warmup_epochs": 5.0},
    ],
    ids=lambda settings: settings["lr_schedule"],
)
def test_learning_rates_depend_on_the_epochs_that_are_over(settings: dict[str, object]) -> None:
    """Check epochs of 6 and then 12 steps: the rate after e epochs equals that of a run with 12 steps from the start."""
    config = Config(epochs=6, lr=0.01, **settings)  # type: ignore[arg-type]
    moved = epoch_offset([Generation(0, 4), Generation(9, 2)], 96, lambda workers: 4 * workers)
    resumed, always = learning_rate(config, 12, moved), learning_rate(config, 12)
    assert [resumed(step) for step in range(9, 9 + 54)] == [always(step) for step in range(18, 72)]
    assert config.total_steps(12, moved) == 9 + 54


@pytest.mark.parametrize("schedule", ["cosine", "poly"])
def test_a_run_that_ends_after_so_many_steps_keeps_its_rates(schedule: str) -> None:
    config = Config(max_steps=40, lr=0.01, lr_schedule=schedule)
    resumed, always = learning_rate(config, 12, 9), learning_rate(config, 6)
    assert [resumed(step) for step in range(41)] == [always(step) for step in range(41)]
