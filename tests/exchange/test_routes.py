"""Layouts and routes of small jobs, against their definition."""

from __future__ import annotations

import pytest

from psnode.exchange.routes import MASTER, Layout, routes_of
from psnode.plan.groups import Tensor
from psnode.plan.rule import make_plan

PLAN = make_plan([Tensor(f"{index}.weight", (8, 8)) for index in range(3)], "identity", group_by="layer", min_compress_bytes=0)


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


@pytest.mark.parametrize(("workers", "spares"), [(1, 0), (3, 0), (2, 2)])
def test_ways_up_end_at_the_root_and_ways_down_reach_every_reader_once(workers: int, spares: int) -> None:
    layout = Layout(workers, spares)
    routes = routes_of(layout, PLAN)
    assert len(routes) == len(PLAN.groups) == 3
    for route in routes:
        for rank in layout.computing:
            seen = [rank]
            while seen[-1] != route.root:
                seen.append(route.up(seen[-1]))
                assert len(seen) <= 1 + len(layout.readers), "a circle"
        passed_on = [heir for rank in (MASTER, *layout.readers) for heir in route.heirs(rank)]
        assert sorted(passed_on) == [rank for rank in (MASTER, *layout.readers) if rank != route.root]
        assert all(rank in route.heirs(route.down(rank)) for rank in layout.readers if rank != route.root)
