"""Cores that threads share, against figures by hand and the planner's engine."""

from __future__ import annotations

import math

import numpy as np
import pytest

from psnode.jobs.planning.fluid.simulation import Graph, Resource
from psnode.jobs.simulating.disturbances import Standstill
from psnode.jobs.simulating.event_loop import EventLoop
from psnode.jobs.simulating.host_cores import SharedCores, SharingThread


def ends(cores: SharedCores, loop: EventLoop, work: list[tuple[float, float]]) -> list[float]:
    """Return the times at which pieces of work end; a piece is given by the time at which it begins and its seconds."""
    found = [math.nan] * len(work)

    def end(index: int) -> None:
        found[index] = loop.now

    for index, (time, seconds) in enumerate(work):
        loop.at(time, cores.run, seconds, end, index)
    loop.run()
    return found


def test_work_shares_a_core_and_the_rest_goes_to_who_is_left() -> None:
    """Check 1 and 3 s of work on one core: each gets half of the core until 2 s; then the longer one runs alone for 2 s."""
    loop = EventLoop()
    assert ends(SharedCores(loop, 1), loop, [(0.0, 1.0), (0.0, 3.0)]) == pytest.approx([2.0, 4.0])


def test_no_work_gets_more_than_a_core() -> None:
    loop = EventLoop()
    assert ends(SharedCores(loop, 4), loop, [(0.0, 1.0), (0.5, 3.0)]) == pytest.approx([1.0, 3.5])


def test_crowded_cores_are_slower() -> None:
    """Check two cores that run at .8 of their speed if both work: .8 s of work ends at 1 s; the last .2 s of the other work
    run at full speed.
    """
    loop = EventLoop()
    assert ends(SharedCores(loop, 2, 0.8), loop, [(0.0, 0.8), (0.0, 1.0)]) == pytest.approx([1.0, 1.2])


def test_cores_that_stand_still_do_nothing() -> None:
    """Check that 1 s of work ends at 3 s if the cores are stopped from .5 to 2.5 s; work that arrives meanwhile begins at
    2.5 s.
    """
    loop = EventLoop()
    cores = SharedCores(loop, 2, standstills=[Standstill(1, 0.5, 2.5)])
    assert ends(cores, loop, [(0.0, 1.0), (1.0, 0.25), (2.0, 0.0)]) == pytest.approx([3.0, 2.75, 2.5])


def test_a_thread_does_one_piece_of_work_after_another() -> None:
    """Check a thread with two pieces of work of 1 s each, on a core that it shares with another piece of 1 s until 2 s."""
    loop, told = EventLoop(), list[tuple[str, float]]()
    cores = SharedCores(loop, 1)
    thread = SharingThread(cores)
    for name in ("first", "second"):
        thread.run(1.0, lambda name=name: told.append((name, loop.now)))
    cores.run(1.0, lambda: told.append(("other", loop.now)))
    loop.run()
    assert [(name, round(time, 9)) for name, time in told] == [("first", 2.0), ("other", 2.0), ("second", 3.0)]


@pytest.mark.parametrize("seed", range(8))
def test_shared_cores_agree_with_the_planner(seed: int) -> None:
    """Compare the ends of work on shared cores with the planner's. In the planner a resource of its own stands for the delay
    before a piece of work.
    """
    random = np.random.default_rng(seed)
    count, crowded = int(random.integers(1, 5)), float(random.choice([1.0, 0.7]))
    work = [(float(random.uniform(0, 3)), float(random.uniform(0, 2))) for _ in range(12)]
    graph = Graph()
    pool, free = graph.resource(Resource(count, 1.0, crowded)), graph.resource(Resource(math.inf, 1.0))
    numbers = [graph.add("work", seconds, [pool], [graph.add("delay", time, [free])]) for time, seconds in work]
    loop = EventLoop()
    assert ends(SharedCores(loop, count, crowded), loop, work) == pytest.approx(list(graph.run().end[numbers]), rel=1e-9)
