"""The size of pieces follows the rate at which they leave, measured on a clock of the test."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from psnode.transport.mpi.fragments import Part, cut
from psnode.transport.mpi.piece_size import PieceSize
from psnode.transport.mpi.requests import Then
from psnode.transport.mpi.send_queue import WINDOW, Outgoing

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


def test_a_window_of_parts_leaves_at_once_and_the_others_in_order() -> None:
    started: list[tuple[Part, Then]] = []
    size = PieceSize(10, lambda: 0.0)
    outgoing = Outgoing(lambda part, then: started.append((part, then)), size)
    finished: list[str] = []
    long, short = np.arange(200, dtype=np.uint8), np.arange(5, dtype=np.uint8)
    outgoing.put(cut(long, 1, size), lambda: finished.append("long"))
    outgoing.put(cut(short, 1, size), lambda: finished.append("short"))
    assert len(started) == WINDOW
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
    outgoing = Outgoing(lambda part, then: started.append((part, then)), size)
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
    outgoing = Outgoing(lambda part, then: started.append((part, then)), size)
    finished: list[str] = []
    for name in ("first", "second"):
        outgoing.put(cut(np.zeros(400, np.uint8), 1, size), lambda name=name: finished.append(name))  # type: ignore[misc]
    outgoing.drop()
    assert finished == ["second"]  # MPI still reads the first
    for _, then in list(started):
        then(1)
    assert finished == ["second", "first"]
    assert len(started) == WINDOW
    assert not outgoing.busy
    outgoing.put(cut(np.zeros(1, np.uint8), 1, size), lambda: finished.append("late"))
    assert finished[-1] == "late"
    assert len(started) == WINDOW
