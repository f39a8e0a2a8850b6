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


@pytest.mark.parametrize(("size", "spares"), [(1, 0), (1, 2), (3, 2), (3, 4)])
def test_a_job_of_too_few_ranks_has_no_workers(size: int, spares: int) -> None:
    layout = Layout.of(size, spares)
    assert layout.workers == 0
    assert list(layout.readers) == list(range(1, size))
