"""The measurement of memory bandwidth really reads all of its bytes."""

from __future__ import annotations

import numpy as np

from psnode.bench.hardware import last_level_cache
from psnode.bench.yardsticks.bandwidth import fold, read_bandwidth
from psnode.bench.yardsticks.rotation import Rotation, beyond_cache
from psnode.bench.yardsticks.timing import rate


def test_every_word_is_read() -> None:
    words = np.random.default_rng(0).integers(0, 2**63, 10_001, dtype=np.uint64)
    assert fold(words) == np.bitwise_xor.reduce(words)


def test_quartiles_are_ordered_and_counted_in_bytes_a_second() -> None:
    found = read_bandwidth(Rotation(np.ones(1 << 16, np.float32), 1 << 20), seconds=0.01)
    assert 0 < found["low"] <= found["median"] <= found["high"]


def test_an_action_is_repeated_until_it_is_known_and_no_longer() -> None:
    calls: list[int] = []
    rate(lambda: calls.append(1), 8, seconds=0.0, least=7)
    assert len(calls) == 1 + 7
    calls.clear()
    rate(lambda: calls.append(1), 8, seconds=10.0, least=5, most=20)
    assert len(calls) == 1 + 20


def test_copies_that_come_round_are_four_caches_apart_and_those_between_are_others() -> None:
    x = np.arange(1001, dtype=np.float32)
    copies = Rotation(x, 10 * x.nbytes)
    taken = [copies.take() for _ in range(21)]
    starts = [each.ctypes.data for each in taken]
    assert len(set(starts[:10])) == 10
    assert starts[:10] == starts[10:20]
    assert copies.nbytes >= 10 * x.nbytes
    assert min(abs(a - b) for a in starts[:10] for b in starts[:10] if a != b) >= x.nbytes
    assert all(start % 8 == starts[0] % 8 for start in starts)
    assert all((each == x).all() for each in taken)
    assert beyond_cache(1 << 20) == 4 << 20
    assert last_level_cache() >= 1 << 18


def test_one_copy_is_read_again_and_again() -> None:
    copies = Rotation(np.ones(64, np.float32), 0)
    assert copies.take().ctypes.data == copies.take().ctypes.data
    copies.fill(2)
    assert (copies.take() == 2).all()


def test_copies_that_are_read_and_those_that_are_written_are_apart_within_a_page() -> None:
    x = np.arange(1 << 16, dtype=np.float32)
    read, written = Rotation(x, 3 * x.nbytes), Rotation(x, 3 * x.nbytes, 512)
    for _ in range(3):
        source, target = read.take(), written.take()
        assert (target.ctypes.data - source.ctypes.data) % 4096 == 2048
        assert (target == x).all()
