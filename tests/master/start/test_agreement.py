"""Numbers of threads of a job's ranks, which share the cores of their machines."""

from __future__ import annotations

from psnode.master.start.agreement import threads_of
from psnode.protocol.messages import Hello


def greeting(host: str, cores: int, pool: str) -> bytes:
    return Hello(host, 1, "0.1", "", cores, pool).to_bytes()


def test_ranks_of_one_pool_of_cores_divide_it_and_others_have_their_own() -> None:
    ranks = {0: greeting("a", 8, "x"), 1: greeting("b", 8, "x"), 2: greeting("c", 8, "x"), 3: greeting("d", 4, "y")}
    assert threads_of(ranks, 0) == {0: 2, 1: 2, 2: 2, 3: 4}
    assert threads_of(ranks, 5) == dict.fromkeys(range(4), 5)


def test_a_rank_has_a_thread_even_where_cores_are_fewer_than_ranks() -> None:
    assert threads_of(dict.fromkeys(range(5), greeting("a", 2, "x")), 0) == dict.fromkeys(range(5), 1)
