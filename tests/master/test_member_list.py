"""Members of a job: active members, members that may return, and unused parts of a returned worker's gradient."""

from __future__ import annotations

from psnode.master.member_list import Members
from psnode.transport.clock import Clock


class Seconds:
    value = 0.0

    def __call__(self) -> float:
        return self.value


def test_three_strikes_in_a_row_count_and_others_do_not() -> None:
    members = Members([1, 2], Clock())
    assert [members.strike(1), members.strike(1), members.strike(2), members.strike(1)] == [False, False, False, True]
    members.forgive(2)
    assert [members.strike(2) for _ in range(3)] == [False, False, True]


def test_only_who_was_heard_since_returns() -> None:
    members = Members([1, 2, 3], Clock())
    for rank in (2, 3):
        assert members.remove(rank)
        members.suspend(rank, {0: 4, 1: 4}, 5)
    members.hear(1)
    members.hear(3)
    assert list(members.readmit()) == [3]
    assert members.live == {1, 3}
    assert (members.is_suspended(2), members.is_suspended(3)) == (True, False)
    assert members.forget(2)
    assert not members.forget(2)
    assert not members.remove(2)


def test_groups_of_its_last_step_that_were_not_taken_are_named() -> None:
    """Check that groups 1 and 3 of step 5 are named: groups 0 and 2 were taken before the suspension, but 1 and 3 arrive too
    late.
    """
    members = Members([1, 2], Clock())
    members.remove(2)
    members.suspend(2, {0: 5, 1: 4, 2: 5, 3: 4}, 5)
    members.hear(2, gradient_of=5)
    assert members.readmit() == {2: (5, [1, 3])}


def test_a_step_that_it_took_while_it_was_aside_is_its_last() -> None:
    """Check a worker that takes a step while it is suspended: this step is its last one. Under rules that accept stale
    gradients, the last step is unknown until the worker sends a message.
    """
    members = Members([1, 2], Clock())
    members.remove(2)
    members.suspend(2, {0: 7, 1: 3}, 0)
    members.hear(2)
    members.hear(2, gradient_of=7)
    assert members.readmit() == {2: (7, [1])}


def test_silence_counts_from_the_last_word_or_question() -> None:
    seconds = Seconds()
    members = Members([1, 2, 3], Clock(seconds))
    seconds.value = 10.0
    members.hear(1)
    members.restart_silence([2])
    seconds.value = 14.0
    assert [members.silent_for(rank) for rank in (1, 2, 3)] == [4.0, 4.0, 14.0]


def test_spares_are_promoted_to_empty_places_in_their_order() -> None:
    members = Members([1, 2, 3], Clock(), spares=[4, 5])
    assert members.promote() == []
    members.remove(2)
    assert members.promote() == [4]
    assert (members.live, members.spares) == ({1, 3, 4}, [5])
    assert members.forget(5)
    members.remove(1)
    assert members.promote() == []
    assert members.live == {3, 4}


def test_who_returns_to_a_taken_place_waits_as_a_spare() -> None:
    members = Members([1, 2], Clock(), spares=[3])
    members.remove(2)
    members.suspend(2, {0: 5}, 5)
    assert members.promote() == [3]
    members.hear(2)
    assert members.readmit() == {2: (5, [])}
    assert (members.live, members.spares) == ({1, 3}, [2])
