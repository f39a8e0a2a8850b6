"""Routes of small jobs, compared with their definition and with the best division of groups by brute force."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from psnode.config import Config
from psnode.errors import ConfigurationError
from psnode.exchange.routes import group_bytes_of, require_central, require_straight, routes_of
from psnode.plans.groups import Tensor
from psnode.plans.roles import MASTER, Layout
from psnode.plans.rule import make_plan

PLAN = make_plan([Tensor(f"{index}.weight", (8, 8)) for index in range(3)], "identity", group_by="layer", min_compress_bytes=0)


@pytest.mark.parametrize(("workers", "spares"), [(1, 0), (3, 0), (2, 2)])
@pytest.mark.parametrize("topology", ["star", "mesh", "star:down=tree"])
def test_ways_up_end_at_the_root_and_ways_down_reach_every_reader_once(topology: str, workers: int, spares: int) -> None:
    layout = Layout(workers, spares)
    routes = routes_of(layout, PLAN, topology)
    assert len(routes) == len(PLAN.groups) == 3
    for route in routes:
        for rank in layout.computing:
            seen = [rank]
            while seen[-1] != route.root:
                seen.append(route.up(seen[-1]))
                assert len(seen) <= 1 + len(layout.readers), "a circle"
        passed_on = [heir for rank in (MASTER, *layout.readers) for heir in route.heirs(rank)]
        assert sorted(passed_on) == list(layout.readers)
        assert all(rank in route.heirs(route.down(rank)) for rank in layout.readers)


@pytest.mark.parametrize(("workers", "spares"), [(1, 0), (2, 1), (5, 0), (7, 2), (12, 0)])
def test_weights_reach_every_rank_that_is_to_get_them_once_whoever_is_left_out(workers: int, spares: int) -> None:
    """Whoever passes weights on has its whole subtree among the readers, so nobody else gets them."""
    layout, rng = Layout(workers, spares), np.random.default_rng(workers)
    [route, *_] = routes_of(layout, PLAN, "star:down=tree")
    parents = {rank: 0 if rank <= 2 or rank > workers else (rank - 1) // 2 for rank in layout.readers}
    assert {rank: route.down(rank) for rank in layout.readers} == parents
    for _ in range(30):
        readers = {rank for rank in layout.readers if rng.random() < 0.8}
        sends = route.sends(readers)
        reached = [*sends.used, *sends.passed_on]
        for rank in sends.passed_on:
            below = [other for other in layout.readers if rank in _way_up(other, parents)]
            assert sorted(route.behind(rank)) == below != []
            reached += below
        assert sorted(reached) == sorted(readers)
    everybody = route.sends(layout.readers)
    assert len(everybody.used) + len(everybody.passed_on) == min(2, workers) + spares


def _way_up(rank: int, parents: dict[int, int]) -> list[int]:
    found = []
    while rank:
        found.append(rank := parents[rank])
    return found


@pytest.mark.parametrize("seed", range(20))
def test_the_largest_part_of_a_mesh_is_at_most_four_thirds_of_the_least_possible_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    workers, sizes = int(rng.integers(1, 4)), [int(size) for size in rng.integers(1, 100, rng.integers(1, 7))]
    tensors = [Tensor(f"{index}.weight", (size, 1)) for index, size in enumerate(sizes)]
    plan = make_plan(tensors, "identity", group_by="layer", min_compress_bytes=0)
    loads = dict.fromkeys(range(1, workers + 1), 0)
    for group, route in zip(plan.groups, routes_of(Layout(workers), plan, "mesh"), strict=True):
        loads[route.root] += group.size
    divisions = product(range(workers), repeat=len(sizes))
    least = min(max(np.bincount(division, sizes, workers)) for division in divisions)
    assert max(loads.values()) <= 4 / 3 * least + 1e-9


def test_groups_are_about_four_for_each_root_within_bounds() -> None:
    assert group_bytes_of("star", 45_000_000, 4) == 16 << 20
    assert group_bytes_of("mesh", 45_000_000, 4) == 2_812_500
    assert group_bytes_of("mesh", 400, 4) == 1 << 16
    assert group_bytes_of("mesh", 10**9, 4) == 16 << 20


def test_programs_that_know_one_topology_refuse_the_others() -> None:
    require_central(Config(), "psnode plan")
    for topology in ("mesh", "star:down=tree"):
        with pytest.raises(ConfigurationError, match=r"^psnode plan knows --topology star alone$"):
            require_central(Config(topology=topology), "psnode plan")
    for topology in ("star", "mesh"):
        require_straight(Config(topology=topology), "psnode bench peers")
    with pytest.raises(ConfigurationError, match=r"^psnode bench peers counts passed-on bytes twice: leave out --topology star:"):
        require_straight(Config(topology="star:down=tree"), "psnode bench peers")
