"""Links of several ranks, two of which carry each message, against figures by hand and the planner's engine."""

from __future__ import annotations

import math

import numpy as np
import pytest

from psnode.jobs.planning.fluid.simulation import Graph, Resource
from psnode.jobs.simulating.event_loop import EventLoop
from psnode.jobs.simulating.paired_links import HubLinks, LinksOfRanks, PairedLinks


def ends(links: LinksOfRanks, loop: EventLoop, messages: list[tuple[float, int, int, float]]) -> list[float]:
    """Return the times at which messages end; a message is given by the time at which it is sent, its source, target and
    bytes.
    """
    found = [math.nan] * len(messages)

    def end(index: int) -> None:
        found[index] = loop.now

    for index, (time, source, target, nbytes) in enumerate(messages):
        loop.at(time, links.send, source, target, nbytes, end, index)
    loop.run()
    return found


def links(loop: EventLoop, capacity: float | None = 100.0, ranks: int = 4) -> PairedLinks:
    return PairedLinks(loop, capacity, ranks, lambda source, target: 1.0)


def test_both_directions_of_a_link_carry_messages_at_full_rate() -> None:
    loop = EventLoop()
    assert ends(links(loop), loop, [(0.0, 1, 2, 100.0), (0.0, 2, 1, 200.0)]) == pytest.approx([1.0, 2.0])


def test_a_message_gets_the_smaller_of_its_two_shares() -> None:
    """Check links of 100 B/s: rank 3 receives from ranks 1 and 2 at 50 B/s each, while rank 1 sends to ranks 2 and 3.

    So all messages have 50 B/s. At 2 s the 100 bytes from rank 1 to rank 3 have arrived, and the other two messages continue
    at 100 B/s.
    """
    loop = EventLoop()
    found = ends(links(loop), loop, [(0.0, 1, 3, 100.0), (0.0, 2, 3, 200.0), (0.0, 1, 2, 300.0)])
    assert found == pytest.approx([2.0, 3.0, 4.0])


def test_messages_between_two_ranks_follow_each_other_and_empty_ones_take_no_time() -> None:
    loop = EventLoop()
    found = ends(links(loop), loop, [(0.0, 1, 2, 100.0), (0.0, 1, 2, 0.0), (0.0, 1, 2, 100.0), (0.5, 1, 3, 0.0)])
    assert found == pytest.approx([1.0, 1.0, 2.0, 0.5])


def test_a_rank_that_is_cut_off_leaves_the_links_to_the_others() -> None:
    """Check links of 100 B/s: rank 3 receives from ranks 1 and 2 at 50 B/s each until rank 2 is cut off at 1 s, then rank
    1's last 150 bytes at 100 B/s.
    """
    loop = EventLoop()
    cut = links(loop)
    loop.at(1.0, cut.cut, 2)
    found = ends(cut, loop, [(0.0, 1, 3, 200.0), (0.0, 2, 3, 200.0), (2.0, 1, 2, 10.0)])
    assert found == pytest.approx([2.5, math.nan, math.nan], nan_ok=True)


def test_links_without_a_rate_cost_nothing() -> None:
    loop = EventLoop()
    assert ends(links(loop, None), loop, [(1.0, 1, 2, 1e9), (2.0, 2, 3, 0.0)]) == [1.0, 2.0]


@pytest.mark.parametrize("seed", range(5))
def test_messages_from_and_to_the_master_alone_need_no_second_link(seed: int) -> None:
    random = np.random.default_rng(seed)
    weights = {rank: float(random.uniform(0.5, 2)) for rank in (1, 2, 3)}
    messages = []
    for _ in range(15):
        rank, up = int(random.integers(1, 4)), bool(random.integers(2))
        messages.append((float(random.uniform(0, 3)), rank if up else 0, 0 if up else rank, float(random.uniform(0, 200))))
    loops = EventLoop(), EventLoop()
    paired = PairedLinks(loops[0], 100.0, 4, lambda source, target: weights.get(max(source, target), 1.0))
    found = ends(paired, loops[0], messages), ends(HubLinks(loops[1], 100.0, weights), loops[1], messages)
    assert found[0] == pytest.approx(found[1], rel=1e-9)


@pytest.mark.parametrize("seed", range(8))
def test_links_agree_with_the_planner(seed: int) -> None:
    """Compare the ends of messages with the planner's if every message has its own connection, in one direction between two
    ranks.
    """
    random = np.random.default_rng(seed)
    ranks = 5
    weights = random.uniform(0.5, 2, (ranks, ranks))
    pairs = [(source, target) for source in range(ranks) for target in range(ranks) if source != target]
    messages = [
        (float(random.uniform(0, 3)), *pairs[each], float(random.uniform(0, 200)))
        for each in random.choice(len(pairs), 14, replace=False)
    ]
    graph = Graph()
    free = graph.resource(Resource(math.inf, 1.0))
    outward, inward = ([graph.resource(Resource(100.0)) for _ in range(ranks)] for _ in range(2))
    numbers = [
        graph.add(
            "message",
            nbytes,
            [outward[source], inward[target]],
            [graph.add("delay", time, [free])],
            weight=weights[source, target],
        )
        for time, source, target, nbytes in messages
    ]
    loop = EventLoop()
    paired = PairedLinks(loop, 100.0, ranks, lambda source, target: float(weights[source, target]))
    assert ends(paired, loop, messages) == pytest.approx(list(graph.run().end[numbers]), rel=1e-9)
