"""Frames that a shard keeps: they are passed on as they were sealed, and an answer with other frames is refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from psnode.errors import WireError
from psnode.exchange.shard.remote.kept_frames import KeptFrames, split_frames
from psnode.protocol import wire
from psnode.protocol.wire import Bytes, Flag, Frame, Kind

JOB = 11


def sealed(rank: int, group: int, kind: Kind = Kind.GRADIENT, size: int = 8) -> Bytes:
    return wire.pack(kind, bytes(range(size)), sender=rank, job=JOB, group=group, step=5, version=4, flags=Flag.PARTIAL)


def kept(*frames: Bytes, release: Callable[[], None] = lambda: None) -> KeptFrames:
    found = KeptFrames()
    for each in frames:
        found.add(wire.unpack(each.copy(), job=JOB, release=release))
    return found


def answer(*parts: Bytes) -> Frame:
    return Frame(Kind.ANSWER, Flag.NONE, 3, 0, 1, 0, np.concatenate([np.zeros(0, np.uint8), *parts]))


def test_frames_come_out_as_they_were_sealed() -> None:
    frames = kept(sealed(2, 0), sealed(2, 4, size=12), sealed(1, 4))
    assert frames.groups(2) == [0, 4]
    assert frames.groups(3) == []
    body = frames.sealed(2, [4, 0], JOB)
    assert body == sealed(2, 4, size=12).tobytes() + sealed(2, 0).tobytes()
    first, second = split_frames(answer(np.frombuffer(body, np.uint8)), JOB, 2, [4, 0])
    assert (first.tobytes(), second.tobytes()) == (sealed(2, 4, size=12).tobytes(), sealed(2, 0).tobytes())


def test_memory_is_freed_when_the_next_round_opens_and_not_by_a_reader() -> None:
    freed: list[int] = []
    frames = kept(sealed(2, 0), sealed(1, 0), release=lambda: freed.append(1))
    KeptFrames.lent(wire.unpack(sealed(2, 1), job=JOB, release=lambda: freed.append(1))).release()
    assert freed == []
    frames.clear()
    assert freed == [1, 1]
    assert frames.groups(2) == []


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [sealed(2, 0)[:20]],
        [sealed(2, 0)[:-1]],
        [sealed(2, 1)],
        [sealed(1, 0)],
        [sealed(2, 0, Kind.SKIP_STEP)],
        [sealed(2, 0), np.zeros(4, np.uint8)],
    ],
    ids=["nothing", "half a header", "half a body", "another group", "another rank", "another kind", "more"],
)
def test_an_answer_without_the_frame_is_refused_and_its_sender_named(parts: list[Bytes]) -> None:
    with pytest.raises(WireError) as told:
        split_frames(answer(*parts), JOB, 2, [0])
    assert told.value.source == 3
