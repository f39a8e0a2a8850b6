"""The study of links in both directions: the exchange over a network in this process, and the shares of a table."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from psnode.errors import ConfigurationError
from psnode.protocol.channel import FrameChannel
from psnode.protocol.wire import Kind
from psnode.transport.loopback import loopback_group
from studies import both_ways, both_ways_rank
from studies.both_ways import STUDY, Options, measure, row
from studies.both_ways_rank import Rates
from studies.harness import page

BODY = bytes(1000)


@pytest.mark.parametrize(("inward", "outward"), [(3, 0), (0, 3), (3, 3), (1, 4)])
def test_every_frame_arrives_and_the_next_exchange_begins_clean(
    inward: int, outward: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(both_ways_rank, "SECONDS", 10.0)
    counted = list[tuple[list[int], list[int]]]()

    def count(begin: float, came: Sequence[Sequence[float]], went: Sequence[Sequence[float]], size: int) -> Rates:
        assert size == len(BODY)
        assert all(time > begin for times in (*came, *went) for time in times)
        counted.append((sorted(map(len, came)), sorted(map(len, went))))
        return Rates(0.0, 0.0)

    monkeypatch.setattr(both_ways_rank, "rates", count)
    links = [FrameChannel(transport) for transport in loopback_group(3)]

    def work(link: FrameChannel) -> None:
        while (frame := link.expect(Kind.PROBE, 10, Kind.END)).kind is Kind.PROBE:
            orders = both_ways_rank.ORDER.unpack(bytes(frame.body))
            frame.release()
            both_ways_rank.answer(link, orders[0], orders[1], BODY)

    threads = [threading.Thread(target=work, args=(link,)) for link in links[1:]]
    for thread in threads:
        thread.start()
    for _ in range(2):
        both_ways_rank.exchanged(links[0], {1: inward, 2: 0}, outward, BODY)
    links[0].send((1, 2), Kind.END)
    for thread in threads:
        thread.join()
    assert counted == [([inward] if inward else [], [outward, outward])] * 2


def test_both_rates_end_with_the_first_direction_that_is_done() -> None:
    # out: 3 and 3 frames until second 4; in: at second 4 one connection has 2 frames and half of the third, the other 1
    found = both_ways_rank.rates(1.0, [[2.0, 3.0, 5.0], [4.0, 9.0]], [[2.0, 3.0, 4.0], [1.5, 2.0, 3.9]], 600)
    assert found == pytest.approx(Rates(3.5 * 600 / 3, 6 * 600 / 3))
    assert both_ways_rank.rates(1.0, [[2.0], [3.0]], [[], []], 600) == pytest.approx(Rates(600.0, 0.0))


@pytest.mark.parametrize(("senders", "frames"), [(1, {1: 8, 2: 0, 3: 0}), (2, {1: 4, 2: 4, 3: 0}), (3, {1: 2, 2: 3, 3: 3})])
def test_the_senders_share_all_frames(senders: int, frames: dict[int, int]) -> None:
    assert both_ways_rank.shared_out(8, (1, 2, 3), senders) == frames


def test_a_share_is_that_of_the_rates_of_one_direction_at_a_time() -> None:
    rounds = [{"inward": 12e6, "outward": 12e6, "both_in": both, "both_out": 12e6} for both in (9e6, 6e6, 12e6)]
    found = row(rounds)
    assert found["share"] == pytest.approx(21 / 24)
    result = {
        "date": "today",
        "cpu": "a processor",
        "cores": 2,
        "size": 5000,
        "rounds": 3,
        "rows": [{"rate": "1gbit", "workers": 4, "senders": 2, **found}],
    }
    assert "| 1gbit | 4 | 2 | 96.0 | 96.0 | 72.0 | 96.0 | 0.88 |" in page(STUDY, result)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (Options(workers=3, senders=(1, 4)), "--senders 4 are more than the 3 workers"),
        (Options(rate=("100mbit", "none")), "--rate must be a number above 0"),
    ],
)
def test_options_without_sense_are_refused_before_anything_is_measured(
    options: Options, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(both_ways, "on_hosts", lambda *_, **__: pytest.fail("a job was started"))
    with pytest.raises(ConfigurationError, match=reason):
        measure(options)
