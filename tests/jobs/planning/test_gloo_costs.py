"""The cost of all-reduces in a ring: measured by two processes, and 0 where no two processes form a ring."""

from __future__ import annotations

import sys

import pytest

from psnode.jobs.planning.host_prices import gloo_costs
from psnode.jobs.planning.host_prices.gloo_costs import RingCosts, ring_costs


def test_two_processes_add_up_arrays() -> None:
    found = ring_costs()
    assert 0 < found.turn < 1 and 0 <= found.wake < 1
    assert 0 < found.byte < 1e-6


def test_costs_follow_from_the_durations_of_all_reduces() -> None:
    """Check that disturbances of a few values count only under `wake`, those of many values not at all, and that an array
    passes once in two turns.
    """
    few, nbytes = [0.0002] * 40 + [0.0042] * 20, 4 * ((8 << 20) - 256)
    found = RingCosts.of(few, [0.2002] * 11 + [9.0])
    assert found == pytest.approx((0.0001, 20 * 0.004 / 120, 0.2 / nbytes))


def test_costs_are_unknown_if_many_values_take_less_time_than_few() -> None:
    assert RingCosts.of([0.1] * 60, [0.09] * 12) == RingCosts()


def test_a_rank_of_a_job_starts_no_other_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setattr(gloo_costs, "probe", lambda *_: pytest.fail("started"))
    assert ring_costs() == RingCosts()


@pytest.mark.parametrize("program", ["", "print(1)", "raise SystemExit(2)"])
def test_without_a_ring_there_is_no_cost(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gloo_costs, "_COMMAND", [sys.executable, "-c", program])
    assert ring_costs() == RingCosts(0.0, 0.0, 0.0)
