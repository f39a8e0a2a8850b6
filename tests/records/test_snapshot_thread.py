"""A thread that reads snapshots while values change: it sees the values of the moment, and can be told to give up."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from psnode.records.snapshots.snapshot import Snapshot
from psnode.records.snapshots.snapshot_thread import SnapshotThread


def test_the_thread_reads_the_values_of_the_moment_also_if_they_change_before_it_begins() -> None:
    values, gate, found = torch.arange(1000.0), threading.Event(), np.empty(4000, np.uint8)

    def read(snapshot: Snapshot) -> None:
        assert gate.wait(60)
        snapshot.read(values, 0, found)

    thread = SnapshotThread("reader", 1 << 20)
    thread.prepare([[values]])
    thread.begin([values], [[values]], read)
    thread.protect(0)
    values.fill_(-1)
    gate.set()
    thread.finish()
    thread.close()
    assert found.view(np.float32).tolist() == list(range(1000))


def test_a_snapshot_that_is_given_up_cannot_be_read_and_the_next_one_can() -> None:
    values, begun, given_up, found = torch.arange(4.0), threading.Event(), threading.Event(), np.empty(16, np.uint8)

    def late(snapshot: Snapshot) -> None:
        begun.set()
        assert given_up.wait(60)
        with pytest.raises(OSError, match="given up"):
            snapshot.read(values, 0, found)

    thread = SnapshotThread("reader", 1 << 20)
    thread.give_up()  # there is none
    first = thread.begin([values], [[values]], late)
    assert begun.wait(60)
    real = first.result
    first.result = lambda timeout=None: given_up.set() or real(timeout)  # type: ignore[method-assign,assignment,func-returns-value]
    thread.give_up()
    thread.begin([values], [[values]], lambda snapshot: snapshot.read(values, 0, found)).result()
    thread.close()
    assert found.view(np.float32).tolist() == [0, 1, 2, 3]
