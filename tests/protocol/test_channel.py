"""Channels of frames: one per role, over one transport."""

from __future__ import annotations

import threading

import pytest

from psnode.errors import DeadlineExceededError, PeerLostError
from psnode.protocol.channel import FrameChannel, StopRequest
from psnode.protocol.wire import Frame, Kind
from psnode.transport.loopback import loopback_group


def test_two_roles_of_a_rank_read_their_own_frames_at_the_same_time() -> None:
    ends = loopback_group(2)
    senders = [FrameChannel(ends[0], tag) for tag in (0, 1)]
    readers = [FrameChannel(ends[1], tag) for tag in (0, 1)]
    found: list[list[int]] = [[], []]

    def read(role: int) -> None:
        for _ in range(50):
            frame = readers[role].next(30)
            assert isinstance(frame, Frame)
            found[role].append(frame.step)

    threads = [threading.Thread(target=read, args=(role,)) for role in (0, 1)]
    for thread in threads:
        thread.start()
    for step in range(50):
        senders[0].send(1, Kind.PING, step=step)
        senders[1].send(1, Kind.PING, step=1000 + step)
    for thread in threads:
        thread.join()
    assert found == [list(range(50)), list(range(1000, 1050))]


def test_a_request_to_stop_is_seen_by_the_role_that_it_was_posted_to() -> None:
    [end] = loopback_group(1)
    first, second = FrameChannel(end, 0), FrameChannel(end, 1)
    first.inbox.post(StopRequest("SIGTERM"))
    assert first.next(1) == StopRequest("SIGTERM")
    with pytest.raises(DeadlineExceededError):
        second.next(0)


def test_the_loss_of_a_rank_ends_the_waits_of_those_who_watch_it() -> None:
    ends = loopback_group(4)
    everybody, master_only, another = (
        FrameChannel(ends[1], tag, watched=watched) for tag, watched in enumerate((None, {0}, {3}))
    )
    ends[3].die("its thread failed")
    for channel in (everybody, another):
        with pytest.raises(PeerLostError, match="rank 3"):
            channel.next(1)
    with pytest.raises(DeadlineExceededError):
        master_only.next(0)
    ends[0].die("its thread failed")
    with pytest.raises(PeerLostError, match="rank 0"):
        master_only.next(1)
