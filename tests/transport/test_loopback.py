"""The loopback transport: the transport contract, and the death of a rank."""

from __future__ import annotations

import threading

import pytest

from psnode.errors import TransportError
from psnode.transport.base import PeerLost, Transport
from psnode.transport.loopback import loopback_group
from tests.transport.contract import CHECKS, run_contract


@pytest.mark.parametrize("size", [1, 2, 5])
def test_loopback_keeps_the_contract(size: int) -> None:
    passed: dict[int, list[str]] = {}

    def be(transport: Transport) -> None:
        passed[transport.rank] = []
        for name in run_contract(transport, big=4 << 20):
            passed[transport.rank].append(name)

    threads = [threading.Thread(target=be, args=(end,)) for end in loopback_group(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
    everything = [check.__name__ for check in CHECKS] + ["check_closing"]
    assert passed == dict.fromkeys(range(size), everything)


def test_a_message_is_a_copy_of_what_was_sent() -> None:
    sender, receiver = loopback_group(2)
    buffer = bytearray(b"before")
    assert sender.send(1, 0, [buffer]).done
    buffer[:] = b"after."
    assert receiver.wait(0, 1).data.tobytes() == b"before"


def test_a_rank_that_dies_is_announced_to_all_others_after_its_last_message() -> None:
    ends = loopback_group(3)
    waiting = ends[0].inbox(1)
    ends[2].send(0, 9, [b"last words"])
    ends[2].die("its thread failed")
    assert ends[0].wait(9, 60).data.tobytes() == b"last words"
    lost = PeerLost(2, "its thread failed")
    assert ends[0].inbox(9).wait(60) == lost
    assert waiting.wait(60) == lost  # every role of a rank receives the event
    assert ends[0].inbox(4).wait(60) == lost  # also a role that begins later
    assert ends[1].inbox(9).wait(60) == lost
    assert ends[0].alive() == {0, 1}
    assert ends[0].send(2, 0, [b"dropped"]).done
    with pytest.raises(TransportError, match="closed"):
        ends[2].send(0, 0, [b"from beyond"])


def test_a_group_without_ranks_is_refused() -> None:
    with pytest.raises(TransportError, match="size is 0"):
        loopback_group(0)
