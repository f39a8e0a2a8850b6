"""Routes of small jobs, compared with their definition."""

from __future__ import annotations

import pytest

from psnode.exchange.routes import routes_of
from psnode.plans.groups import Tensor
from psnode.plans.roles import MASTER, Layout
from psnode.plans.rule import make_plan

PLAN = make_plan([Tensor(f"{index}.weight", (8, 8)) for index in range(3)], "identity", group_by="layer", min_compress_bytes=0)


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
