"""A link that connections share, against figures by hand and against small steps of time."""

from __future__ import annotations

import math

import numpy as np
import pytest

from psnode.jobs.simulating.event_loop import EventLoop
from psnode.jobs.simulating.shared_link import SharedLink


def ends(link: SharedLink, loop: EventLoop, messages: list[tuple[float, int, float]]) -> list[float]:
    """Return the times at which messages end; a message is given by the time at which it is sent, its connection and bytes."""
    found = [math.nan] * len(messages)

    def end(index: int) -> None:
        found[index] = loop.now

    for index, (time, connection, nbytes) in enumerate(messages):
        loop.at(time, link.send, connection, nbytes, end, index)
    loop.run()
    return found


def test_events_keep_the_order_of_their_times_and_of_their_calls() -> None:
    loop, told = EventLoop(), list[tuple[float, str]]()
    for time, name in ((2.0, "late"), (1.0, "first"), (1.0, "second")):
        loop.at(time, lambda name: told.append((loop.now, name)), name)
    assert not loop.run()
    assert told == [(1.0, "first"), (1.0, "second"), (2.0, "late")]


def test_the_first_messages_of_two_connections_share_the_link_and_the_rest_goes_to_who_is_left() -> None:
    """Check messages of 100 and 300 bytes on a link of 100 B/s: both get 50 B/s until 2 s, then the last 200 bytes get 100
    B/s.
    """
    loop = EventLoop()
    assert ends(SharedLink(loop, 100.0, {1: 1.0, 2: 1.0}), loop, [(0.0, 1, 100.0), (0.0, 2, 300.0)]) == pytest.approx([2.0, 4.0])


def test_messages_of_a_connection_follow_each_other() -> None:
    """Check a link of 100 B/s with 100 + 100 bytes on connection 1 and 100 on connection 2: each gets 50 B/s until 2 s, then
    the rest 100 B/s.
    """
    loop = EventLoop()
    found = ends(SharedLink(loop, 100.0, {1: 1.0, 2: 1.0}), loop, [(0.0, 1, 100.0), (0.0, 1, 100.0), (0.0, 2, 100.0)])
    assert found == pytest.approx([2.0, 3.0, 2.0])


def test_weights_share_a_link_unequally() -> None:
    """Check weights of 3 and 1 on a link of 100 B/s: they get 75 and 25 B/s until the first has its 150 bytes at 2 s; then
    the other's last 50 bytes get 100 B/s.
    """
    loop = EventLoop()
    assert ends(SharedLink(loop, 100.0, {1: 3.0, 2: 1.0}), loop, [(0.0, 1, 150.0), (0.0, 2, 100.0)]) == pytest.approx([2.0, 2.5])


def test_a_cut_connection_loses_its_messages_and_leaves_the_link_to_the_others() -> None:
    """Check a link of 100 B/s: two messages get 50 B/s each until one connection is cut at 1 s, then the other's last 150
    bytes get 100 B/s.
    """
    loop = EventLoop()
    link = SharedLink(loop, 100.0, {1: 1.0, 2: 1.0})
    loop.at(1.0, link.cut, 1)
    found = ends(link, loop, [(0.0, 1, 100.0), (0.0, 2, 200.0), (3.0, 1, 10.0)])
    assert found == pytest.approx([math.nan, 2.5, math.nan], nan_ok=True)


def test_a_link_without_a_rate_costs_nothing() -> None:
    loop = EventLoop()
    assert ends(SharedLink(loop, None, {1: 1.0}), loop, [(1.0, 1, 1e9), (2.0, 1, 0.0)]) == [1.0, 2.0]


@pytest.mark.parametrize("seed", range(5))
def test_a_link_agrees_with_small_steps_of_time(seed: int) -> None:
    random = np.random.default_rng(seed)
    weights = {connection: float(random.uniform(0.5, 2)) for connection in range(4)}
    messages = sorted((float(random.uniform(0, 3)), int(random.integers(4)), float(random.uniform(0, 200))) for _ in range(12))
    loop = EventLoop()
    found = ends(SharedLink(loop, 200.0, weights), loop, messages)
    step, left, ended = 1e-3, [nbytes for _, _, nbytes in messages], [math.nan] * len(messages)
    for tick in range(20_000):
        now = tick * step
        first = dict[int, int]()
        for index, (time, connection, _) in enumerate(messages):
            if time <= now and math.isnan(ended[index]):
                first.setdefault(connection, index)
        total = sum(weights[connection] for connection in first)
        for connection, index in first.items():
            left[index] -= 200.0 * step * weights[connection] / total
            if left[index] <= 0:
                ended[index] = now + step
    assert found == pytest.approx(ended, abs=2e-2)
