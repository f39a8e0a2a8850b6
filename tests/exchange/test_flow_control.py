"""Bytes in flight between the master and a rank: their limit, questions to a rank that lags, its hold, and its release."""

from __future__ import annotations

import random
import threading
import time

import pytest

from psnode.exchange import flow_control
from psnode.exchange.flow_control import LEAST, FlowControl

MIB = 1 << 20


def test_the_limit_is_two_sets_of_weights_and_at_least_64_mib() -> None:
    assert FlowControl(10 * MIB).limit == LEAST == 64 * MIB
    assert FlowControl(45 * MIB).limit == 90 * MIB


def test_who_answers_is_never_held() -> None:
    found = FlowControl(0)
    for version in range(1, 100):
        found.sent([1], 20 * MIB)
        if found.ask(1, version):
            found.answer(1, version)
        assert not found.hold(1, version + 1)
    assert found.held == {}


def test_who_does_not_answer_is_asked_once_and_then_held() -> None:
    found = FlowControl(0)
    asked, held = [], []
    for version in range(1, 100):
        if 1 not in found.held:
            found.sent([1], 10 * MIB)
        asked += [version] if found.ask(1, version) else []
        held += [version + 1] if found.hold(1, version + 1) else []
    assert (asked, held) == ([4], [8])  # more than 32 MiB, more than 64 MiB
    assert found.outstanding(1) == 70 * MIB
    assert not found.answer(1, 4)  # a later question has replaced this one
    assert found.release(everybody=False) == {}
    assert found.answer(1, 8)
    assert found.outstanding(1) == 0
    assert list(found.release(everybody=False)) == [1]
    assert found.held == {}


def test_an_answer_covers_what_was_sent_before_its_question() -> None:
    found = FlowControl(0)
    found.sent([1], 40 * MIB)
    assert found.ask(1, 1)
    found.sent([1], 20 * MIB)
    assert not found.ask(1, 2)  # a question is under way
    assert not found.answer(1, 2)
    found.answer(1, 1)
    assert found.outstanding(1) == 20 * MIB


def test_what_is_waited_for_counts_as_taken() -> None:
    found = FlowControl(0)
    found.sent([1, 2], 50 * MIB)
    found.settle([1, 3])
    assert [found.outstanding(rank) for rank in (1, 2, 3)] == [0, 50 * MIB, 0]
    found.sent([1], 30 * MIB)
    assert not found.ask(1, 1) and found.ask(2, 1)
    found.sent([1], 10 * MIB)
    assert found.ask(1, 2)
    assert not found.answer(1, 2) and found.outstanding(1) == 0


class Interrupted:
    """An account that lets another thread run between the reading and the writing of `sent`."""

    def __init__(self) -> None:
        self._sent, self.taken, self.asked, self.mark = 0, 0, None, 0

    @property
    def sent(self) -> int:
        read = self._sent
        time.sleep(0)
        return read

    @sent.setter
    def sent(self, value: int) -> None:
        self._sent = value


def test_what_several_threads_send_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_control, "_Account", Interrupted)
    found = FlowControl(0)
    threads = [threading.Thread(target=lambda: [found.sent([1, 2], 3) for _ in range(2_000)]) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found.outstanding(1) == found.outstanding(2) == 2 * 2_000 * 3


def test_at_the_end_everybody_is_released_and_who_is_lost_is_not() -> None:
    found = FlowControl(0)
    found.sent([1, 2, 3], 65 * MIB)
    assert all(found.hold(rank, 7) for rank in (1, 2, 3))
    assert found.let_go(2) is not None
    assert found.let_go(2) is None
    assert sorted(found.release(everybody=True)) == [1, 3]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_ranks_do_no_more_than_the_bound_lies_between(seed: int) -> None:
    """Check that at most the bound is in flight, by a model of each rank's queue. Ranks take their weights in pieces, or take
    nothing for a long time.
    """
    rng = random.Random(seed)
    weights, version_bytes = 30 * MIB, 7 * MIB
    found = FlowControl(weights)
    queues: dict[int, list[tuple[str, int]]] = {rank: [] for rank in (1, 2, 3)}
    held = 0
    for version in range(1, 400):
        for rank in found.release(everybody=False):
            queues[rank].append(("weights", weights))
            found.sent([rank], weights)
        ranks = [rank for rank in queues if rank not in found.held]
        for rank in ranks:
            queues[rank].append(("weights", version_bytes))
            found.sent([rank], version_bytes)
            if found.ask(rank, version):
                queues[rank].append(("question", version))
            if found.hold(rank, version + 1):
                queues[rank].append(("question", version + 1))
        for rank, queue in queues.items():
            assert sum(size for what, size in queue if what == "weights") <= found.limit + version_bytes + weights
            for _ in range(rng.choice([0, 0, 0, 1, 2, 20 * (rank == 1)])):
                if queue and (answer := queue.pop(0))[0] == "question":
                    found.answer(rank, answer[1])
        held += len(found.held)
    assert held > 0
