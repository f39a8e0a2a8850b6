"""Pieces of large messages: their size follows from the rate at which they leave, and their number from the round trip."""

from __future__ import annotations

import itertools
import socket

import numpy as np
import pytest

from psnode.transport.mpi import listening
from psnode.transport.mpi.fragments import Part, cut
from psnode.transport.mpi.listening import stream_sockets
from psnode.transport.mpi.piece_size import PieceSize
from psnode.transport.mpi.requests import Then
from psnode.transport.mpi.round_trip import MOST_PIECES, Window, longest_round_trip
from psnode.transport.mpi.send_queue import AHEAD, Outgoing

_LEAST, _MOST = 1 << 17, 1 << 26


class SteadyLink:
    """A link that carries `rate` bytes a second, one piece after another, with two pieces in transit."""

    def __init__(self, rate: float, most: int = _MOST) -> None:
        self.rate, self.now = rate, 0.0
        self.size = PieceSize(most, lambda: self.now)

    def carry(self, pieces: int, pause: float = 0.0) -> list[int]:
        """Return the sizes of `pieces` pieces that leave without an interval, after an idle `pause` in seconds."""
        self.now += pause
        sizes = [self.size()]
        self.size.began()
        for _ in range(pieces):
            sizes.append(self.size())
            self.size.began()
            self.now += sizes[-2] / self.rate
            self.size.left(sizes[-2])
        self.now += sizes[-1] / self.rate
        self.size.left(sizes[-1])
        return sizes


@pytest.mark.parametrize("rate", [1.25e6, 12.5e6, 125e6, 1.25e9, 1e11])
def test_a_piece_takes_ten_milliseconds_within_the_bounds(rate: float) -> None:
    link = SteadyLink(rate)
    link.carry(200)
    assert link.size() == pytest.approx(min(max(rate / 100, _LEAST), _MOST), rel=0.15)


def test_sizes_at_most_double_and_fall_at_once() -> None:
    link = SteadyLink(1e9)
    sizes = link.carry(100)
    assert all(after <= 2 * before for before, after in itertools.pairwise(sizes))
    assert link.size() > 30 * _LEAST
    link.rate = 12.5e6
    link.carry(20)
    assert link.size() == pytest.approx(_LEAST, rel=0.15)


def test_pauses_are_not_part_of_the_rate() -> None:
    link = SteadyLink(125e6)
    for _ in range(30):
        link.carry(20, pause=1.0)
    assert link.size() == pytest.approx(1.25e6, rel=0.15)


def test_no_piece_is_larger_than_the_largest_that_is_allowed() -> None:
    link = SteadyLink(1e12, most=1000)
    assert set(link.carry(100)) == {1000}


@pytest.mark.parametrize(("pieces", "parts"), [(0.5, 1), (1, 1), (4, 1), (4.5, 6), (9, 10)])
def test_a_message_of_a_few_pieces_is_not_cut(pieces: float, parts: int) -> None:
    size = PieceSize(_MOST, lambda: 0.0)
    message = np.zeros(int(pieces * _LEAST), np.uint8)
    assert len(list(cut(message, 1, size, size.whole))) == parts


def test_no_message_is_larger_than_the_largest_piece_that_is_allowed() -> None:
    size = PieceSize(1000, lambda: 0.0)
    assert max(part.data.size for part in cut(np.zeros(4000, np.uint8), 1, size, size.whole)) == 1000


def test_a_window_of_parts_leaves_at_once_and_the_others_in_order() -> None:
    started: list[tuple[Part, Then]] = []
    size = PieceSize(10, lambda: 0.0)
    outgoing = Outgoing(lambda part, then: started.append((part, then)), size, lambda: 10)
    finished: list[str] = []
    long, short = np.arange(200, dtype=np.uint8), np.arange(5, dtype=np.uint8)
    outgoing.put(cut(long, 1, size), lambda: finished.append("long"))
    outgoing.put(cut(short, 1, size), lambda: finished.append("short"))
    assert len(started) == 10 + AHEAD
    for number in range(21):  # the length and 20 pieces
        assert not finished
        started[number][1](0)
    assert finished == ["long"]
    assert len(started) == 22
    assert b"".join(part.data.tobytes() for part, _ in started[1:21]) == long.tobytes()
    assert started[21][0].data.tobytes() == short.tobytes()
    assert outgoing.busy
    started[21][1](0)
    assert finished == ["long", "short"]
    assert not outgoing.busy


def test_a_message_is_finished_when_all_its_parts_have_left_in_any_order() -> None:
    started: list[tuple[Part, Then]] = []
    size = PieceSize(10, lambda: 0.0)
    outgoing = Outgoing(lambda part, then: started.append((part, then)), size, lambda: 10)
    finished: list[str] = []
    outgoing.put(cut(np.zeros(30, np.uint8), 1, size), lambda: finished.append("message"))
    assert len(started) == 4
    for number in (3, 0, 2):
        started[number][1](0)
        assert not finished
    started[1][1](0)
    assert finished == ["message"]


def test_messages_to_a_lost_rank_are_finished_and_nothing_more_leaves() -> None:
    started: list[tuple[Part, Then]] = []
    size = PieceSize(10, lambda: 0.0)
    outgoing = Outgoing(lambda part, then: started.append((part, then)), size, lambda: 10)
    finished: list[str] = []
    for name in ("first", "second"):
        outgoing.put(cut(np.zeros(400, np.uint8), 1, size), lambda name=name: finished.append(name))  # type: ignore[misc]
    outgoing.drop()
    assert finished == ["second"]  # MPI still reads the first
    for _, then in list(started):
        then(1)
    assert finished == ["second", "first"]
    assert len(started) == 10 + AHEAD
    assert not outgoing.busy
    outgoing.put(cut(np.zeros(1, np.uint8), 1, size), lambda: finished.append("late"))
    assert finished[-1] == "late"
    assert len(started) == 10 + AHEAD


def test_a_burst_into_buffers_after_a_pause_does_not_count() -> None:
    link = SteadyLink(12.5e6)
    link.carry(200)
    for _ in range(5):
        link.rate = 2e9
        link.carry(12, pause=1.0)
        link.rate = 12.5e6
        link.carry(100)
    assert link.size() == _LEAST


@pytest.mark.parametrize(
    ("round_trip", "pieces"), [(0.0, 2), (0.0002, 2), (0.004, 2), (0.02, 6), (0.1, 22), (0.3, MOST_PIECES), (5.0, MOST_PIECES)]
)
def test_pieces_of_two_round_trips_are_in_transit(round_trip: float, pieces: int) -> None:
    assert Window(lambda: round_trip, lambda: 0.0)() == pieces


def test_the_round_trip_is_asked_for_once_a_second() -> None:
    now, asked = [100.0], []
    window = Window(lambda: asked.append(now[0]) or 0.0, lambda: now[0])  # type: ignore[func-returns-value]
    for now[0] in (100.0, 100.5, 100.9, 101.1, 101.5, 102.2):
        assert window() == 2
    assert asked == [100.0, 101.1, 102.2]


@pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="the kernel does not tell the state of connections")
def test_the_kernel_tells_the_round_trip_of_a_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        with accepted:
            for _ in range(20):
                client.sendall(b"ping")
                assert accepted.recv(4) == b"ping"
                accepted.sendall(b"pong")
                assert client.recv(4) == b"pong"
            assert 0 < longest_round_trip([client.fileno()]) < 0.5
            assert client.fileno() in set(stream_sockets())
            left, right = socket.socketpair()
            with left, right:
                assert longest_round_trip([left.fileno()]) == 0
        closed = client.fileno()
    assert longest_round_trip([closed]) == 0
    assert longest_round_trip([]) == 0


def test_a_system_that_lists_no_descriptors_has_no_round_trip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "_TCP_SOCKETS", "/nowhere")
    assert list(stream_sockets()) == []
    assert Window()() == 2
