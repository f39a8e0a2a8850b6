"""Frames that a worker passes on: the bytes, the ways on which they may come, and when their memory is free again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from psnode.errors import AlteredFrameError, ForeignFrameError, WireError
from psnode.exchange.routes.topologies import routes_of
from psnode.plans.groups import Tensor
from psnode.plans.roles import Layout
from psnode.plans.rule import make_plan
from psnode.protocol import wire
from psnode.protocol.channel import RELAY_TAG, FrameChannel, RemoteFailureError
from psnode.protocol.wire import Bytes, Frame, Kind
from psnode.transport.base import Arrival, Inboxes
from psnode.worker.weights_relay import WeightsRelay

PLAN = make_plan([Tensor("weight", (8, 8))], "identity", group_by="layer", min_compress_bytes=0)
ROUTES = routes_of(Layout(7), PLAN, "star:down=tree")
ME, PARENT, HEIRS = 3, 1, (7,)


class Wire:
    """A transport of rank 3 that keeps the messages that are sent; the test says when they have left."""

    def __init__(self) -> None:
        self.rank, self.inboxes = ME, Inboxes()
        self.inbox = self.inboxes.of
        self.sent: list[tuple[int, int, Any, SimpleNamespace]] = []

    def send(self, rank: int, tag: int, buffers: Sequence[Bytes]) -> SimpleNamespace:
        self.sent.append((rank, tag, buffers[0], pending := SimpleNamespace(done=False)))
        return pending


class Ground:
    """A relay of rank 3 of seven workers. `freed`: messages whose memory was given back."""

    def __init__(self) -> None:
        self.wire, self.freed = Wire(), list[int]()
        self.link = FrameChannel(self.wire)  # type: ignore[arg-type]
        self.relay = WeightsRelay(self.link, ROUTES)

    def come(self, source: int, data: Bytes, number: int = 0) -> None:
        self.wire.inboxes.deliver(Arrival(source, RELAY_TAG, data, lambda: self.freed.append(number)))

    def next(self) -> Frame:
        found = self.link.next(10)
        assert isinstance(found, Frame)
        return found


def frame(kind: Kind = Kind.DELTA, *, sender: int = 0, group: int = 0, job: int = 0) -> Bytes:
    return wire.pack(kind, b"abcd", sender=sender, job=job, group=group, version=5)


@pytest.mark.parametrize("source", [PARENT, 0])
def test_the_received_buffer_is_sent_on_and_then_used(source: int) -> None:
    ground, data = Ground(), frame()
    ground.come(source, data)
    found = ground.next()
    [(rank, tag, buffer, _)] = ground.wire.sent
    assert ((rank,), tag) == (HEIRS, RELAY_TAG) and np.shares_memory(buffer, data)
    assert (found.sender, found.version, bytes(found.body)) == (source, 5, b"abcd")
    ground.relay.close()


def test_memory_is_given_back_when_the_worker_and_all_sends_are_through() -> None:
    ground = Ground()
    for number in (1, 2):
        ground.come(PARENT, frame(), number)
    first, second = ground.next(), ground.next()
    ground.wire.sent[0][3].done = ground.wire.sent[1][3].done = True
    first.release()
    ground.come(PARENT, frame(), 3)
    ground.next()
    ground.relay.close()
    assert ground.freed == [1]
    second.release()
    assert ground.freed == [1]  # until the next frame comes


WRONG: dict[str, tuple[int, Callable[[], Bytes], type[Exception]]] = {
    "another rank": (2, frame, WireError),
    "an heir": (7, frame, WireError),
    "made by the parent": (PARENT, lambda: frame(sender=PARENT), ForeignFrameError),
    "of another job": (PARENT, lambda: frame(job=1), ForeignFrameError),
    "not weights": (PARENT, lambda: frame(Kind.GRADIENT), WireError),
    "no such group": (PARENT, lambda: frame(group=len(ROUTES)), WireError),
    "altered": (PARENT, lambda: frame() ^ np.eye(1, 56, 53, dtype=np.uint8)[0], AlteredFrameError),
}


@pytest.mark.parametrize(("source", "data", "error"), WRONG.values(), ids=WRONG)
def test_other_frames_are_not_passed_on_and_end_the_worker(
    source: int, data: Callable[[], Bytes], error: type[Exception]
) -> None:
    ground = Ground()
    ground.come(source, data())
    with pytest.raises(error) as raised:
        ground.link.next(10)
    assert not isinstance(raised.value, RemoteFailureError) and ground.wire.sent == []
    ground.relay.close()
