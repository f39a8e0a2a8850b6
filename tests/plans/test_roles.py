"""Roles of the ranks of small jobs, compared with their definition."""

from __future__ import annotations

import pytest

from psnode.plans.roles import MASTER, Layout


@pytest.mark.parametrize(("size", "spares"), [(2, 0), (5, 0), (5, 1), (6, 3)])
def test_every_rank_has_one_role_and_every_worker_a_place_of_its_own(size: int, spares: int) -> None:
    layout = Layout.of(size, spares)
    assert [MASTER, *layout.computing, *layout.waiting] == list(range(size))
    assert list(layout.readers) == [*layout.computing, *layout.waiting]
    assert len(layout.waiting) == spares
    assert layout.first == min(layout.computing) == MASTER + 1
    assert [layout.place(rank) for rank in layout.computing] == list(range(layout.workers))
    assert all(layout.place(rank) in range(layout.workers) for rank in layout.waiting)


@pytest.mark.parametrize(("size", "servers"), [(3, 1), (6, 2), (9, 4)])
def test_servers_are_the_last_ranks_and_read_no_weights(size: int, servers: int) -> None:
    layout = Layout.of(size, 0, servers)
    assert [MASTER, *layout.readers, *layout.serving] == [MASTER, *layout.others] == list(range(size))
    assert layout.readers == layout.computing == Layout(size - 1 - servers).computing
    assert len(layout.serving) == servers


@pytest.mark.parametrize(("size", "servers"), [(1, 1), (2, 1), (3, 7)])
def test_a_job_of_servers_alone_has_no_workers(size: int, servers: int) -> None:
    layout = Layout.of(size, 0, servers)
    assert layout.workers == 0
    assert list(layout.others) == list(range(1, size))


@pytest.mark.parametrize(("size", "spares"), [(1, 0), (1, 2), (3, 2), (3, 4)])
def test_a_job_of_too_few_ranks_has_no_workers(size: int, spares: int) -> None:
    layout = Layout.of(size, spares)
    assert layout.workers == 0
    assert list(layout.readers) == list(range(1, size))
