"""Rates of shared cores: each is measured against the same work alone, on the same core."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from psnode.jobs.planning.host_prices import host_costs
from psnode.jobs.planning.host_prices.host_costs import CoreRates, core_rates


class Clock:
    """A clock of work that takes 1 s of processor time, and 1.25 s beside neighbours on other cores.

    While two processes take turns on a core, the work needs 1.6 s of processor time, and as much time again passes.
    """

    def __init__(self) -> None:
        self.whole = self.used = 0.0
        self.neighbours = 0
        self.cores = {1, 3, 4}

    def work(self) -> None:
        shares = self.neighbours and len(self.cores) == 1
        self.used += 1.6 if shares else 1.25 if self.neighbours else 1.0
        self.whole += 3.2 if shares else 1.25 if self.neighbours else 1.0

    @contextmanager
    def beside(self, work: Callable[[], object], count: int) -> Iterator[None]:
        self.neighbours = count
        yield
        self.neighbours = 0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    times = {"perf_counter": lambda: made.whole, "thread_time": lambda: made.used, "sleep": lambda seconds: None}
    monkeypatch.setattr(host_costs, "time", SimpleNamespace(**times))
    monkeypatch.setattr(host_costs, "_neighbours", made.beside)
    monkeypatch.setattr(host_costs, "usable_cores", lambda: 3)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(made.cores))
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: setattr(made, "cores", set(cores)))
    return made


def test_rates_are_those_of_the_work_alone_over_those_beside_others(clock: Clock) -> None:
    assert core_rates(clock.work, 5.0) == pytest.approx((0.8, 1 / 1.6))
    assert clock.cores == {1, 3, 4}


def test_a_process_that_may_not_choose_a_core_takes_no_turns(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, cores: set[int]) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    assert core_rates(clock.work, 5.0) == CoreRates(pytest.approx(0.8), 1.0)


def test_a_host_with_one_core_is_never_crowded(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_costs, "usable_cores", lambda: 1)
    assert core_rates(clock.work, 5.0).crowded == 1.0
