"""Values at one moment, while the memory that holds them keeps changing."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from psnode.records.snapshots.snapshot import Raw, Snapshot
from psnode.records.snapshots.snapshot_memory import SnapshotMemory
from psnode.records.tensorfile import content_of, parse, write_content

GROUPS = [(0, 5), (5, 5), (5, 12), (12, 30)]
TENSORS = {"a": (0, 3), "b": (3, 12), "c": (12, 12), "d": (12, 29), "e": (29, 30)}


class State:
    """Three vectors changed group by group, with tensors that may span groups, and a tensor that belongs to no group."""

    def __init__(self, room: int) -> None:
        self.vectors = [torch.arange(30, dtype=torch.float32) + 100 * number for number in range(3)]
        self.tensors = {
            f"{number}/{name}": vector[start:stop]
            for number, vector in enumerate(self.vectors)
            for name, (start, stop) in TENSORS.items()
        } | {"still": torch.arange(7)}
        self.values = {name: value.clone() for name, value in self.tensors.items()}
        self.room = SnapshotMemory(room)
        parts = [[vector[start:stop] for vector in self.vectors] for start, stop in GROUPS]
        self.snapshot = Snapshot(self.tensors.values(), parts, self.room)

    def update(self, group: int) -> None:
        self.snapshot.protect(group)
        for vector in self.vectors:
            vector[slice(*GROUPS[group])] = torch.nan

    def read(self, name: str) -> None:
        """Check, in pieces of 5 bytes, that a whole tensor reads as it was at the moment of the snapshot."""
        value = self.values[name]
        found = np.empty(value.nbytes, np.uint8)
        for start in range(0, found.size, 5):
            self.snapshot.read(self.tensors[name], start, found[start : start + 5])
        assert found.tobytes() == value.numpy().tobytes(), name


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_what_is_read_is_as_it_was_whatever_changes_in_between_and_in_any_order(data: st.DataObject) -> None:
    state = State(room=1 << 20)
    reads = data.draw(st.permutations(list(state.tensors)))
    updates = data.draw(st.lists(st.integers(0, len(reads) - 1), min_size=12, max_size=12))
    for place, name in enumerate(reads):
        for number, moment in enumerate(updates):
            if moment == place:
                state.update(number % len(GROUPS))
        state.read(name)
    assert state.room.taken == 0


def test_a_group_that_changes_amid_the_reading_of_a_tensor_is_read_as_it_was(tmp_path: Path) -> None:
    state = State(room=1 << 20)

    def read(tensor: torch.Tensor, start: int, out: Raw) -> None:
        half = out.size // 8 * 4
        state.snapshot.read(tensor, start, out[:half])
        for group in range(len(GROUPS)):
            state.update(group)
        state.snapshot.read(tensor, start + half, out[half:])

    write_content(tmp_path / "file", content_of(state.tensors), read)
    found = parse((tmp_path / "file").read_bytes(), "file")
    assert all(torch.equal(found[name], value) for name, value in state.values.items())


def test_a_change_while_bytes_are_being_copied_has_them_copied_again(monkeypatch: pytest.MonkeyPatch) -> None:
    state = State(room=1 << 20)
    own, late = np.copyto, [3]

    def copyto(target: Raw, source: Raw) -> None:
        half = source.size // 2
        own(target[:half], source[:half])
        while late:
            state.update(late.pop())  # the update copies too
        own(target[half:], source[half:])

    monkeypatch.setattr(np, "copyto", copyto)
    state.read("1/d")


def test_copies_take_no_more_than_their_room_and_who_finds_none_waits_for_the_reader() -> None:
    state = State(room=30)  # room for 7 values of 4 bytes; group 2 has 7 values in each of three vectors
    changed = threading.Event()

    def change() -> None:
        state.update(2)
        changed.set()

    thread = threading.Thread(target=change)
    thread.start()
    most = 0
    for number in range(3):
        assert number == 2 or not changed.is_set()  # the last vector may be copied as soon as the second has been read
        for name in TENSORS:
            state.read(f"{number}/{name}")
            most = max(most, state.room.taken)
    thread.join()
    assert changed.is_set() and most <= 30
    state.read("still")
    assert state.room.taken == 0


def test_without_a_reader_nobody_waits() -> None:
    state = State(room=1)
    threads = [threading.Thread(target=state.update, args=(group,)) for group in range(len(GROUPS))]
    for thread in threads:
        thread.start()
    state.snapshot.close()
    for thread in threads:
        thread.join()
    with pytest.raises(OSError, match="given up"):
        state.read("0/a")
    assert state.room.taken == 0


def test_copies_of_what_is_given_up_are_let_go_of() -> None:
    state = State(room=1 << 20)
    state.update(3)
    assert state.room.taken == 3 * 4 * 18
    state.snapshot.close()
    assert state.room.taken == 0


def test_it_is_read_anew_only_if_nothing_has_changed() -> None:
    state = State(room=1 << 20)
    for name in state.tensors:
        state.read(name)
    assert state.snapshot.rewind()
    state.update(3)
    for name in state.tensors:
        state.read(name)
    assert not state.snapshot.rewind()
