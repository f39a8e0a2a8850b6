"""Rates of links, computed from frames whose times are known, and the frames with which workers answer a probe."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable

import pytest

from psnode.errors import WireError
from psnode.protocol import link_rates
from psnode.protocol.channel import FrameChannel
from psnode.protocol.link_rates import answer, measure_links
from psnode.protocol.wire import Kind
from psnode.transport.loopback import loopback_group


def takes(
    rate: float, latency: float = 0.0, burst: int = 0, noise: Callable[[int], float] = lambda size: 0.0
) -> Callable[[int], float]:
    return lambda size: latency + max(0, size - burst) / rate


@pytest.mark.parametrize("rate", [1e5, 1.25e7, 1.2e8, 1e10])
@pytest.mark.parametrize("latency", [0.0, 0.04, 0.5])
def test_neither_latency_nor_a_burst_changes_the_rate(rate: float, latency: float) -> None:
    sizes: list[int] = []
    model = takes(rate, latency, burst=1 << 13)
    found = link_rates._rate(lambda size: sizes.append(size) or model(size), latency)  # type: ignore[func-returns-value]
    assert found == pytest.approx(rate)
    assert sizes[:-3] == [sizes[0] << place for place in range(len(sizes) - 3)]
    assert sizes[-3:] == [sizes[-4], sizes[-4] // 2, sizes[-4] // 2]
    assert max(sizes) <= 1 << 23


def test_times_that_do_not_grow_give_the_rate_of_the_largest_frame() -> None:
    assert link_rates._rate(lambda size: 0.01, 0.0) == pytest.approx((1 << 23) / 0.01)


def test_one_pause_of_the_network_changes_nothing() -> None:
    """Check the rate if one frame takes 0.3 s longer: this ends the growth of the frames, but the sizes that count are timed
    twice.
    """
    model = takes(1.25e8, 0.001, burst=0)
    for stalled in range(8):
        calls: list[int] = []

        def seconds(size: int, stalled: int = stalled, calls: list[int] = calls) -> float:
            calls.append(size)
            return model(size) + 0.3 * (len(calls) == stalled + 1)

        assert link_rates._rate(seconds, 0.001) == pytest.approx(1.25e8)


def test_all_workers_are_asked_and_nothing_is_left_in_the_inboxes() -> None:
    master, *workers = map(FrameChannel, loopback_group(4))
    received = {worker.rank: 0 for worker in workers}

    def be_worker(link: FrameChannel) -> None:
        while (frame := link.expect(Kind.PLAN, 30, Kind.PROBE)).kind is Kind.PROBE:
            received[link.rank] += frame.body.size
            answer(link, frame)

    threads = [threading.Thread(target=be_worker, args=(link,)) for link in workers]
    for thread in threads:
        thread.start()
    found = measure_links(master, (1, 2, 3), 30)
    master.send((1, 2, 3), Kind.PLAN)
    for thread in threads:
        thread.join(30)
    assert found.round_trip > 0
    assert found.up > 0
    assert found.down > 0
    assert len(set(received.values())) == 1
    assert min(received.values()) > 1 << 14
    assert master.inbox.poll() is None
    assert master.control.received == 0  # only PLAN counts, as sent


@pytest.mark.parametrize("body", [b"", b"1234567", struct.pack("<Q", (1 << 23) + 1)])
def test_a_worker_sends_no_more_than_it_may(body: bytes) -> None:
    master, worker = map(FrameChannel, loopback_group(2))
    master.send(1, Kind.PROBE, body)
    with pytest.raises(WireError, match="more bytes than it may"):
        answer(worker, worker.expect(Kind.PROBE, 5))
