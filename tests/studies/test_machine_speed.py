"""Profiles at another speed of the machine: a step without links and waits becomes longer by the same factor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from psnode.config.load import load
from psnode.jobs.planning.ddp_step import ddp_step
from psnode.jobs.planning.job_step import job_step
from psnode.jobs.planning.profile import GroupCosts, HostCosts, Profile, SchemeCosts, TensorTimes
from psnode.jobs.planning.scenario import Scenario
from studies import machine_speed
from studies.machine_speed import RepeatedPasses, slowed

GROUPS = (GroupCosts(1000, 500, 0.01, 0.002, 0.003, 0.004, 0.1, 0.0), GroupCosts(2000, 900, 0.02, 0.003, 0.004, 0.005, 0.2, 0.05))
HOST = HostCosts(1e-7, 2e-7, 1e-3, 3e-7, 2, 0.9, 3e-7, 1e-3, 0.0, 2e-7)
TENSORS = (TensorTimes((30, 10), 0.1, 0.0, "a"), TensorTimes((50,), 0.2, 0.05, "b"))
PROFILE = Profile("m", 1, 0.1, 0.2, 0.01, TENSORS, HOST, {"s": SchemeCosts(GROUPS, 1e-3, 0.01, lossy=True)}, {"fp32": 0.01})


@pytest.mark.parametrize("workers", [1, 3])
def test_all_work_takes_longer_by_the_factor(workers: int) -> None:
    scenario, slow = Scenario(workers, None, 0.0, 2, shared=True), slowed(PROFILE, 1.5)
    coded, usual = (job_step(profile, profile.schemes["s"], scenario).seconds for profile in (slow, PROFILE))
    assert coded == pytest.approx(1.5 * usual)
    summed, usual = (ddp_step(profile, "fp32", scenario).seconds for profile in (slow, PROFILE))
    assert summed == pytest.approx(1.5 * usual)


def test_links_do_not_become_slower() -> None:
    """Check a step that has only transfers: 3000 bytes up and 1400 down."""
    free = replace(slowed(PROFILE, 1e-9), host=HostCosts(0.0, 0.0, 0.0, 0.0, 2, 1.0))
    scenario = Scenario(1, 8e4, 0.0, 2)
    seconds = [job_step(profile, profile.schemes["s"], scenario).seconds for profile in (free, slowed(free, 2.0))]
    assert seconds[0] == pytest.approx(seconds[1], rel=1e-6)


def test_passes_are_timed_in_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that every timing runs passes of the model, and that torch's threads are as before after it."""
    timed = list[int]()

    def median_seconds(work: Callable[[], object], seconds: float, warmup: int) -> float:
        work()
        timed.append(torch.get_num_threads())
        return float(len(timed))

    monkeypatch.setattr(machine_speed, "median_seconds", median_seconds)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        passes = RepeatedPasses(load({"network": "LeNet", "dataset": "synthetic", "batch_size": 2}, {}))
        assert [passes.seconds(), passes.seconds()] == [1.0, 2.0]
        assert (timed, torch.get_num_threads()) == ([1, 1], 2)
    finally:
        torch.set_num_threads(before)
