"""The simulation of activities on shared resources, against figures by hand and against small steps of time."""

from __future__ import annotations

import math

import numpy as np
import pytest

from psnode.errors import PsnodeError
from psnode.jobs.planning.fluid.simulation import Graph, Resource


def cores(count: float, crowded: float = 1.0, turns: float = 1.0) -> Resource:
    return Resource(count, 1.0, crowded, turns=turns)


def test_three_threads_share_two_cores() -> None:
    graph = Graph()
    pool = graph.resource(cores(2))
    for _ in range(3):
        graph.add("work", 1.0, [pool])
    assert graph.run().end.tolist() == pytest.approx([1.5, 1.5, 1.5])


def test_one_thread_uses_one_core() -> None:
    graph = Graph()
    graph.add("work", 3.0, [graph.resource(cores(2))])
    assert graph.run().end.tolist() == [3.0]


def test_the_rest_of_a_link_goes_to_who_is_left() -> None:
    """Check messages of 100 and 300 bytes on a link of 100 B/s: both get 50 B/s until 2 s, then the last 200 bytes get 100
    B/s.
    """
    graph = Graph()
    link = graph.resource(Resource(100.0))
    graph.add("short", 100.0, [link])
    graph.add("long", 300.0, [link])
    assert graph.run().end.tolist() == pytest.approx([2.0, 4.0])


def test_a_message_has_the_rate_of_the_slower_of_its_two_links() -> None:
    """Check two senders with links of 100 B/s and one receiver with 50 B/s: the senders share the receiver's link."""
    graph = Graph()
    out, inward = [graph.resource(Resource(100.0)) for _ in range(2)], graph.resource(Resource(50.0))
    for each in out:
        graph.add("message", 100.0, [each, inward])
    assert graph.run().end.tolist() == pytest.approx([4.0, 4.0])


def test_weights_share_a_link_unequally() -> None:
    """Check weights of 3 and 1 on a link of 100 B/s: they get 75 and 25 B/s until the first has its 150 bytes at 2 s; then
    the other's last 50 bytes get 100 B/s.
    """
    graph = Graph()
    link = graph.resource(Resource(100.0))
    graph.add("heavy", 150.0, [link], weight=3.0)
    graph.add("light", 100.0, [link], weight=1.0)
    assert graph.run().end.tolist() == pytest.approx([2.0, 2.5])


def test_a_token_bucket_carries_its_burst_at_once_and_saves_again_in_pauses() -> None:
    """Check a rate of 100 B/s with a burst of 50 bytes: 150 bytes take 1 s. The next 50 bytes take .3 s after .2 s without
    traffic, and no time after .8 s.
    """
    graph = Graph()
    link, pause = graph.resource(Resource(100.0, burst=50.0)), graph.resource(Resource(math.inf, 1.0))
    last, ends = -1, list[int]()
    for nbytes, seconds in ((150.0, 0.2), (50.0, 0.8), (50.0, 0.0)):
        last = graph.add("message", nbytes, [link], [last] if ends else [])
        ends.append(last)
        last = graph.add("pause", seconds, [pause], [last])
    assert graph.run().end[ends].tolist() == pytest.approx([1.0, 1.5, 2.3], abs=1e-6)


def test_messages_get_a_burst_one_after_another() -> None:
    """Check three messages of 40 bytes that begin together, at 100 B/s with a burst of 50 bytes.

    The burst carries the first one and a quarter of the second one. Then both others get 50 B/s, until the second one ends.
    """
    graph = Graph()
    link = graph.resource(Resource(100.0, burst=50.0))
    for _ in range(3):
        graph.add("message", 40.0, [link])
    assert graph.run().end.tolist() == pytest.approx([0.0, 0.6, 0.7], abs=1e-6)


def test_a_burst_ends_where_the_other_link_has_saved_nothing_more() -> None:
    """Check two messages of 40 bytes from one link with a burst of 60 bytes, each to a link with a burst of 10 bytes.

    Of each message 10 bytes pass immediately. All links have 100 B/s, so the first link carries the other 60 bytes in .6 s. The
    40 bytes that this link has still saved remain unused, since a burst counts only when an activity begins.
    """
    graph = Graph()
    first, *others = (graph.resource(Resource(100.0, burst=burst)) for burst in (60.0, 10.0, 10.0))
    for other in others:
        graph.add("message", 40.0, [first, other])
    assert graph.run().end.tolist() == pytest.approx([0.6, 0.6], abs=1e-6)


@pytest.mark.parametrize(("threads", "seconds"), [(1, 1.0), (2, 1 / 0.8), (3, 1 / 0.6), (6, 2 / 0.6)])
def test_cores_that_share_caches_are_slower_together(threads: int, seconds: float) -> None:
    """Check three cores that run at .6 of their speed if all of them work: one core alone runs at 1, and two at .8 each."""
    graph = Graph()
    pool = graph.resource(cores(3, crowded=0.6))
    for _ in range(threads):
        graph.add("work", 1.0, [pool])
    assert graph.run().end.tolist() == pytest.approx([seconds] * threads)


@pytest.mark.parametrize(("threads", "seconds"), [(1, 1.0), (2, 1.25), (3, 1.5 / (0.8 * 0.5))])
def test_cores_that_switch_between_threads_are_slower(threads: int, seconds: float) -> None:
    """Check two cores that run at .8 of their speed if both work, and at half of this if they switch between three threads."""
    graph = Graph()
    pool = graph.resource(cores(2, 0.8, 0.5))
    for _ in range(threads):
        graph.add("work", 1.0, [pool])
    assert graph.run().end.tolist() == pytest.approx([seconds] * threads)


def test_a_queue_serves_the_most_urgent_of_those_that_wait() -> None:
    graph = Graph()
    pool, queue = graph.resource(cores(4)), graph.queue()
    first = graph.add("first", 1.0, [pool], queue=queue, urgency=9)
    late = graph.add("late", 1.0, [pool], queue=queue, urgency=2)
    urgent = graph.add("urgent", 1.0, [pool], [graph.add("pause", 0.5, [pool])], queue=queue, urgency=1)
    found = graph.run()
    order = np.argsort(found.begin[[first, late, urgent]])
    assert order.tolist() == [1, 2, 0]  # `late` begins at 0, since `urgent` is not ready yet
    assert sorted(found.end[[first, late, urgent]].tolist()) == pytest.approx([1.0, 2.0, 3.0])


def test_work_begins_when_all_that_it_follows_has_ended_and_the_path_tells_why() -> None:
    graph = Graph()
    pool, link = graph.resource(cores(2)), graph.resource(Resource(10.0))
    computed, sent = graph.add("passes", 2.0, [pool]), graph.add("link", 30.0, [link])
    joined = graph.add("join", 0.0, [], [computed, sent])
    last = graph.add("update", 1.0, [pool], [joined])
    found = graph.run()
    assert found.begin[last] == pytest.approx(3.0)
    assert found.path(last, 0.0, graph.kinds) == pytest.approx({"update": 1.0, "join": 0.0, "link": 3.0})
    assert found.path(last, 2.5, graph.kinds) == pytest.approx({"update": 1.0, "join": 0.0, "link": 0.5})
    room = np.array([each.room for each in graph.resources])
    assert found.in_use(room, 0.0, 4.0)[pool] == pytest.approx(3 / (2 * 4))
    assert found.in_use(room, 1.0, 2.0)[[pool, link]] == pytest.approx([0.5, 1.0])


def test_more_work_than_cores_uses_them_all_and_no_more() -> None:
    """Check two cores with three pieces of work until 6 s, at half of their rate, and then with one until 8 s."""
    graph = Graph()
    pool = graph.resource(cores(2, turns=0.5))
    ends = [graph.add("work", seconds, [pool]) for seconds in (2.0, 2.0, 4.0)]
    found = graph.run()
    assert found.end[ends].tolist() == pytest.approx([6.0, 6.0, 8.0])
    assert found.in_use(np.array([each.room for each in graph.resources]), 0.0, 10.0)[pool] == pytest.approx((6 + 2 / 2) / 10)


def test_work_that_never_ends_is_an_error() -> None:
    graph = Graph()
    graph.add("a", 1.0, [graph.resource(Resource(0.0))])
    with pytest.raises(PsnodeError, match="wait for each other"):
        graph.run()


def test_a_circle_is_an_error() -> None:
    graph = Graph()
    graph.add("a", 1.0, [graph.resource(cores(1))], [1])
    graph.add("b", 1.0, [1], [0])
    with pytest.raises(PsnodeError, match="wait for each other"):
        graph.run()


@pytest.mark.parametrize("seed", range(6))
def test_times_are_those_of_small_steps_of_time(seed: int) -> None:
    """Compare the ends of random activities with the same sharing, integrated in small fixed steps of time, without events."""
    rng = np.random.default_rng(seed)
    graph = Graph()
    pool, links = graph.resource(cores(2, crowded=0.7)), [graph.resource(Resource(5.0)) for _ in range(2)]
    queue = graph.queue()
    activities: list[tuple[float, list[int], list[int], bool]] = []
    for index in range(14):
        on = [pool] if rng.random() < 0.5 else list(rng.permutation(links)[: rng.integers(1, 3)])
        follows = [int(each) for each in np.unique(rng.integers(0, index, 2))] if index > 3 else []
        queued = bool(rng.random() < 0.4)
        activities.append((float(rng.uniform(0.1, 1.0)) * (1 if on == [pool] else 5), on, follows, queued))
        graph.add("any", activities[-1][0], on, follows, queue=queue if queued else None, urgency=-index)
    found = graph.run()
    assert found.end.tolist() == pytest.approx(integrated(activities, pool, links), abs=0.02)


def integrated(activities: list[tuple[float, list[int], list[int], bool]], pool: int, links: list[int]) -> list[float]:
    """Return the times at which activities end, integrated in steps of a millisecond."""
    dt, now = 1e-3, 0.0
    left, ends, serving = [work for work, *_ in activities], [math.inf] * len(activities), -1
    while math.inf in ends:
        ready = [i for i, (_, _, follows, _) in enumerate(activities) if left[i] > 0 and all(ends[j] < math.inf for j in follows)]
        queued = [i for i in ready if activities[i][3]]
        if serving not in queued:
            serving = max(queued, default=-1)
        active = [i for i in ready if not activities[i][3] or i == serving]
        count = {place: sum(place in activities[i][1] for i in active) for place in (pool, *links)}
        for i in active:
            rates = []
            for place in activities[i][1]:
                if place == pool:
                    rates.append(1.0 if count[pool] == 1 else min(1.0, 2 / count[pool]) * 0.7)
                else:
                    rates.append(5.0 / count[place])
            left[i] -= min(rates) * dt
        now += dt
        for i in active:
            if left[i] <= 0:
                ends[i] = now
    return ends
