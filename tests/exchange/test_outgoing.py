"""Memory of outgoing frames is reused once they have left, and not earlier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from psnode.exchange.outgoing import OutgoingFrames
from psnode.protocol.wire import HEADER_BYTES, Kind, split_group


@dataclass
class Sent:
    """A message to one rank; the test decides when the message has left."""

    done: bool = False


@dataclass
class Link:
    """A channel whose messages leave when the test says so."""

    rank: int = 3
    job: int = 7
    sent: list[Sent] = field(default_factory=list)

    def send_frame(self, ranks: Sequence[int], frame: np.ndarray, tag: int | None = None) -> list[Sent]:
        new = [Sent() for _ in ranks]
        self.sent.extend(new)
        return new


def post(frames: OutgoingFrames, group: int, payload: bytes) -> np.ndarray:
    frame = frames.begin(group, 1, 32)
    frame.room[: len(payload)] = np.frombuffer(payload, np.uint8)
    frame.take(len(payload))
    return frames.send(group, frame, (1, 2), Kind.DELTA, 5, 6)


def content(frame: np.ndarray) -> bytes:
    return bytes(split_group(frame[HEADER_BYTES:], 1)[0])


def test_a_frame_takes_the_memory_of_the_one_before_when_that_has_left_for_every_rank() -> None:
    link = Link()
    frames = OutgoingFrames(link)  # type: ignore[arg-type]
    first = post(frames, 0, b"first")
    link.sent[0].done = True
    second = post(frames, 0, b"second")
    assert not np.shares_memory(first, second)
    assert content(first) == b"first"
    link.sent[2].done = link.sent[3].done = True
    third = post(frames, 0, b"third")
    assert np.shares_memory(second, third)
    assert content(third) == b"third"


def test_groups_have_memory_of_their_own() -> None:
    link = Link()
    frames = OutgoingFrames(link)  # type: ignore[arg-type]
    first = post(frames, 0, b"first")
    for sent in link.sent:
        sent.done = True
    assert not np.shares_memory(first, post(frames, 1, b"second"))
