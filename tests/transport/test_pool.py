"""The pool of memory for received messages."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psnode.transport.pool import ALIGNMENT, Pool, size_class


@given(st.integers(4096, 1 << 40))
def test_a_size_class_wastes_at_most_a_quarter(nbytes: int) -> None:
    assert nbytes <= size_class(nbytes) <= nbytes * 5 // 4
    assert size_class(size_class(nbytes)) == size_class(nbytes)


@pytest.mark.parametrize("nbytes", [0, 1, 4095, 4096, 5000, 1 << 20, (1 << 20) + 1])
def test_a_block_has_the_length_asked_for_and_is_aligned(nbytes: int) -> None:
    data = Pool(1 << 24).take(nbytes).data
    assert data.shape == (nbytes,)
    assert data.dtype == np.uint8
    assert data.ctypes.data % (16 if nbytes < 4096 else ALIGNMENT) == 0


def test_released_memory_is_used_again_by_a_block_of_similar_size() -> None:
    pool = Pool(1 << 24)
    first = pool.take(1_000_000)
    address = first.data.ctypes.data
    first.release()
    again = pool.take(1_000_001)
    assert again.data.ctypes.data == address
    assert again.data.size == 1_000_001


def test_memory_in_use_is_never_handed_out_a_second_time() -> None:
    pool = Pool(1 << 24)
    first = pool.take(100_000)
    first.release()
    first.release()
    second, third = pool.take(100_000), pool.take(100_000)
    assert not np.shares_memory(second.data, third.data)


def test_a_late_second_release_does_not_give_away_the_next_users_memory() -> None:
    pool = Pool(1 << 24)
    first = pool.take(100_000)
    first.release()
    second = pool.take(100_000)
    first.release()
    assert not np.shares_memory(second.data, pool.take(100_000).data)


def test_no_more_than_the_limit_is_kept() -> None:
    pool = Pool(3_000_000)
    blocks = [pool.take(1 << 20) for _ in range(5)]
    for block in blocks:
        block.release()
    assert pool.kept == 2 << 20


def test_what_is_never_released_is_collected() -> None:
    pool = Pool(1 << 24)
    block = pool.take(1 << 20)
    memory = weakref.ref(block.data.base)
    del block
    gc.collect()
    assert memory() is None
    assert pool.kept == 0


def test_threads_never_share_a_block() -> None:
    pool = Pool(1 << 24)
    clashes = []

    def work(mark: int) -> None:
        for _ in range(500):
            block = pool.take(8192)
            block.data[:] = mark
            if not (block.data == mark).all():
                clashes.append(mark)
            block.release()

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clashes == []
