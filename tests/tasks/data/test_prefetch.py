"""Batches made in the background: in order, not too far ahead, with errors at the right place, and an end."""

import threading
import time

import numpy as np
import pytest

from psnode.tasks.data.prefetch import Prefetch
from psnode.tasks.data.sampler import Sampler


class Recording:
    """Data whose batches are their indices. Counts calls, and may fail at one of them."""

    def __init__(self, length: int = 40, fail_at: int = -1) -> None:
        self.length, self.fail_at = length, fail_at
        self.calls = 0
        self.threads: set[str] = set()

    def __len__(self) -> int:
        return self.length

    def batch(self, indices, rng):
        self.calls += 1
        self.threads.add(threading.current_thread().name)
        if self.calls == self.fail_at:
            raise OSError("the disk is gone")
        return indices, rng.integers(2**60)


def settled(data: Recording, least: int) -> int:
    """Return the number of calls shortly after it has reached `least`; on a slow machine an excess call may go unnoticed."""
    end = time.monotonic() + 60
    while data.calls < least and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(0.1)
    return data.calls


def test_batches_are_those_of_the_sampler_in_order():
    data, sampler = Recording(), Sampler(40, 1, 2, 3, batches_per_step=2, seed=5)
    with Prefetch(data, sampler, 2, 9) as batches:
        made = list(batches)
    wanted = list(sampler.wanted(3, 9))
    assert len(made) == 7
    for step, expected in zip(made, wanted, strict=True):
        assert len(step) == 2
        for (indices, draw), (wanted_indices, rng) in zip(step, expected, strict=True):
            assert np.array_equal(indices, wanted_indices)
            assert draw == rng.integers(2**60)


def test_one_thread_makes_them_and_it_is_another():
    data = Recording()
    with Prefetch(data, Sampler(40, 0, 1, 4), 0, 10) as batches:
        list(batches)
    assert len(data.threads) == 1
    assert threading.current_thread().name not in data.threads


def test_no_more_than_depth_are_waiting():
    data = Recording()
    with Prefetch(data, Sampler(40, 0, 1, 4), 0, 10, depth=3) as batches:
        assert settled(data, 4) == 4  # three in the queue, and one held by the thread
        next(batches)
        assert settled(data, 5) == 5


def test_an_error_comes_after_the_batches_before_it_and_stays():
    data = Recording(fail_at=4)
    with Prefetch(data, Sampler(40, 0, 1, 4), 0, 10) as batches:
        assert len([next(batches) for _ in range(3)]) == 3
        for _ in range(2):
            with pytest.raises(OSError, match="the disk is gone"):
                next(batches)
    assert data.calls == 4


def test_the_end_stays_the_end():
    with Prefetch(Recording(), Sampler(40, 0, 1, 4), 7, 7) as batches:
        for _ in range(2):
            with pytest.raises(StopIteration):
                next(batches)


@pytest.mark.parametrize("taken", [0, 1, 10])
def test_close_ends_the_thread_whatever_it_is_doing(taken):
    data = Recording()
    before = threading.active_count()
    batches = Prefetch(data, Sampler(40, 0, 1, 4), 0, 10)
    for _ in range(taken):
        next(batches)
    batches.close()
    assert threading.active_count() == before
    batches.close()
    with pytest.raises(StopIteration):
        next(batches)
