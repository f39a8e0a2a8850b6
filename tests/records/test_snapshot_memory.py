"""Memory for copies: within its bound, no byte used twice, and released bytes reused."""

from __future__ import annotations

import gc
import weakref

from hypothesis import given, settings
from hypothesis import strategies as st

from psnode.config.memory import free_memory
from psnode.records.snapshots.snapshot_memory import Allocation, SnapshotMemory


def begun(limit: int) -> SnapshotMemory:
    room = SnapshotMemory(limit)
    with room.changed:
        room.begin()
    return room


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 40))))
@settings(deadline=None, max_examples=80)
def test_copies_lie_side_by_side_inside_of_the_room(asked: list[tuple[bool, int]]) -> None:
    """Compare the room with brute force over single bytes: a copy fits exactly if a run of free bytes is long enough."""
    room, held, taken = begun(100), list[Allocation](), [False] * 100
    for takes, number in asked:
        with room.changed:
            if not takes and held:
                part = held.pop(number % len(held))
                room.give_back(part)
                taken[part.start : part.start + part.raw.size] = [False] * part.raw.size
            elif takes:
                fits = [at for at in range(101 - number) if not any(taken[at : at + number])]
                found = room.take(number)
                assert (found is None) is (not fits)
                if found is not None:
                    assert (found.start, found.raw.size) == (fits[0], number)
                    taken[found.start : found.start + number] = [True] * number
                    held.append(found)
            assert room.taken == sum(taken)


def test_what_was_given_back_is_taken_again_and_holds_what_is_written_there() -> None:
    room = begun(1 << 20)
    for value in (7, 9):
        with room.changed:
            parts = [room.take(size) for size in (3000, 9000, 1 << 19)]
            for part in parts:
                assert part is not None
                part.raw[:] = value
            assert [part.start for part in parts if part is not None] == [0, 3000, 12000]
            assert all((part.raw == value).all() for part in parts if part is not None)
            for part in parts:
                assert part is not None
                room.give_back(part)
            room.rest()


def test_room_that_is_not_given_is_a_part_of_what_is_free() -> None:
    room, free = begun(0), free_memory(swap=False)
    assert free is not None
    with room.changed:
        assert room.take(free) is None
        assert room.take(1) is not None


def test_room_that_was_made_ready_is_not_taken_yet_and_no_copy_is_overwritten_by_making_it_ready() -> None:
    room = SnapshotMemory(1 << 20)
    room.prepare(1 << 24)
    assert room.taken == 0
    with room.changed:
        room.begin()
        part = room.take(1 << 20)
        assert part is not None
        part.raw[:] = 3
    room.prepare(1 << 20)
    assert (part.raw == 3).all()


def test_without_a_snapshot_there_is_no_room() -> None:
    with (room := SnapshotMemory(100)).changed:
        assert room.take(1) is None


def test_a_closed_room_goes_when_the_last_copy_is_given_back() -> None:
    """Check that the pages of a closed room are released once no array uses them."""
    room = begun(100)
    with room.changed:
        part = room.take(40)
    assert part is not None
    pages = weakref.ref(room._pages)  # type: ignore[arg-type]
    room.close()
    assert pages() is not None
    with room.changed:
        room.give_back(part)
        room.rest()
    del part
    gc.collect()
    assert pages() is None
    with room.changed:
        room.begin()
        assert room.take(1) is None
