"""The yardstick really reads what it says."""

from __future__ import annotations

import numpy as np

from psnode.bench.bandwidth import fold, read_bandwidth
from psnode.bench.timing import rate


def test_every_word_is_read() -> None:
    words = np.random.default_rng(0).integers(0, 2**63, 10_001, dtype=np.uint64)
    assert fold(words) == np.bitwise_xor.reduce(words)


def test_quartiles_are_ordered_and_counted_in_bytes_a_second() -> None:
    found = read_bandwidth(np.ones(1 << 16, np.float32), seconds=0.01)
    assert 0 < found["low"] <= found["median"] <= found["high"]


def test_an_action_is_repeated_until_it_is_known_and_no_longer() -> None:
    calls: list[int] = []
    rate(lambda: calls.append(1), 8, seconds=0.0, least=7)
    assert len(calls) == 1 + 7
    calls.clear()
    rate(lambda: calls.append(1), 8, seconds=10.0, least=5, most=20)
    assert len(calls) == 1 + 20
