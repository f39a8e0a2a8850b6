"""The executor's lanes: the work of one group stays in order, and results and errors reach the inbox."""

from __future__ import annotations

import threading

from psnode.exchange.shard.executor import GroupExecutor, lane_count
from psnode.transport.base import Inbox


def test_work_of_a_group_is_done_in_the_order_of_submission() -> None:
    lanes = GroupExecutor(Inbox(), 3, range(10))
    done: dict[int, list[int]] = {group: [] for group in range(5)}
    for number in range(200):
        for group, order in done.items():
            lanes.submit(group, lambda order=order, number=number: order.append(number))
    lanes.close()
    assert all(order == list(range(200)) for order in done.values())


def test_of_what_waits_the_last_group_comes_first() -> None:
    """Check that waiting work of the plan's last group is done first: this group holds the first layers, which the next
    forward pass uses first.
    """
    lanes = GroupExecutor(Inbox(), 1, range(10))
    begun, go_on = threading.Event(), threading.Event()
    done: list[tuple[int, str]] = []
    lanes.submit(9, lambda: (begun.set(), go_on.wait(120), None)[2])
    assert begun.wait(120)
    for group, what in ((0, "add"), (1, "add"), (0, "close"), (2, "add"), (2, "close")):
        lanes.submit(group, lambda item=(group, what): done.append(item))
    go_on.set()
    lanes.close()
    assert done == [(2, "add"), (2, "close"), (1, "add"), (0, "add"), (0, "close")]


def test_groups_run_side_by_side() -> None:
    lanes = GroupExecutor(Inbox(), 2, range(10))
    meeting = threading.Barrier(2, timeout=120)
    for group in (0, 1):
        lanes.submit(group, lambda: (meeting.wait(), None)[1])
    lanes.close()
    assert not meeting.broken


def test_results_and_exceptions_are_posted_and_none_is_not() -> None:
    inbox = Inbox()
    lanes = GroupExecutor(inbox, 1, range(10))
    error = ValueError("bad")

    def fail() -> None:
        raise error

    lanes.submit(0, lambda: "result")
    lanes.submit(0, lambda: None)
    lanes.submit(0, fail)
    lanes.submit(0, lambda: "after")
    lanes.close()
    assert [inbox.poll() for _ in range(4)] == ["result", error, "after", None]


def test_there_is_always_a_lane_and_never_more_than_groups() -> None:
    assert lane_count(1) == 1
    assert 1 <= lane_count(100) <= 4
