"""Routes of small jobs, compared with their definition and with the best division of groups by brute force."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from psnode.config import Config
from psnode.errors import ConfigurationError
from psnode.exchange.routes.refusals import (
    refuse_other_roots,
    refuse_unlike_processors,
    require_straight,
)
from psnode.exchange.routes.topologies import group_bytes_of, routes_of, sent_in_a_step, shares_of
from psnode.plans.groups import Plan, Tensor
from psnode.plans.roles import MASTER, Layout
from psnode.plans.rule import make_plan


def plan_of(sizes: Iterable[int]) -> Plan:
    tensors = [Tensor(f"{index}.weight", (size, 1)) for index, size in enumerate(sizes)]
    return make_plan(tensors, "identity", group_by="layer", min_compress_bytes=0)


PLAN = plan_of([64] * 3)


@pytest.mark.parametrize(("workers", "spares"), [(1, 0), (3, 0), (2, 2)])
@pytest.mark.parametrize("topology", ["star", "mesh", "mesh:master=auto", "star:down=tree"])
def test_ways_up_end_at_the_root_and_ways_down_reach_every_reader_once(topology: str, workers: int, spares: int) -> None:
    layout = Layout(workers, spares)
    routes = routes_of(layout, PLAN, topology)
    assert len(routes) == len(PLAN.groups) == 3
    for route in routes:
        for rank in layout.computing:
            seen = [rank]
            while seen[-1] != route.root:
                [nearest] = route.up(seen[-1])
                seen.append(nearest)
                assert len(seen) <= 1 + len(layout.readers), "a circle"
        passed_on = [heir for rank in (MASTER, *layout.readers) for heir in route.heirs(rank)]
        assert sorted(passed_on) == list(layout.readers)
        assert all(rank in route.heirs(route.down(rank)) for rank in layout.readers)


@pytest.mark.parametrize(("workers", "spares"), [(1, 0), (2, 1), (5, 0), (7, 2), (12, 0)])
def test_weights_reach_every_rank_that_is_to_get_them_once_whoever_is_left_out(workers: int, spares: int) -> None:
    """Check that each reader gets the weights once, for random sets of readers. A rank that passes weights on has its whole
    subtree among the readers.
    """
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
    plan = plan_of(sizes)
    loads = dict.fromkeys(range(1, workers + 1), 0)
    for group, route in zip(plan.groups, routes_of(Layout(workers), plan, "mesh"), strict=True):
        loads[route.root] += group.size
    divisions = product(range(workers), repeat=len(sizes))
    least = min(max(np.bincount(division, sizes, workers)) for division in divisions)
    assert max(loads.values()) <= 4 / 3 * least + 1e-9


@pytest.mark.parametrize("workers", [2, 3, 5, 16])
def test_the_master_of_a_mesh_has_the_part_of_a_server_without_a_worker(workers: int) -> None:
    """Compare the master's share with that of BytePS for a server without a worker, and check that no other share makes the
    busiest link less busy.
    """
    layout, groups = Layout(workers), 4 * (workers + 2)
    roots = [route.root for route in routes_of(layout, plan_of([7] * groups), "mesh:master=auto")]
    below = workers**2 + workers - 2
    assert Fraction(roots.count(MASTER), groups) == Fraction(2 * (workers - 1), below)
    assert {Fraction(roots.count(rank), groups) for rank in layout.computing} == {Fraction(workers - 1, below)}
    others = [_busiest(workers, Fraction(master, groups)) for master in range(groups + 1)]
    assert _busiest(workers, Fraction(roots.count(MASTER), groups)) == min(others)


def _busiest(workers: int, master: Fraction) -> Fraction:
    """Return the load of the busiest link in one direction, for gradients and weights of size 1. The workers share equally
    the part that the master does not have.
    """
    own = (1 - master) / workers
    return max(workers * master, (1 - own) + (workers - 1) * own)


def test_the_largest_groups_go_where_they_fill_the_least_of_a_share() -> None:
    """Check groups of sizes 9, 8, 6, 5 and 1 with shares 2, 1, 1: 9 goes to the master (load 4.5), 8 to rank 1, 6 to rank 2
    (not 7.5 on the master), 5 to the master (7), 1 to rank 2.
    """
    roots = [route.root for route in routes_of(Layout(2), plan_of([1, 5, 6, 8, 9]), "mesh:master=auto")]
    by_size = dict(zip([group.size for group in plan_of([1, 5, 6, 8, 9]).groups], roots, strict=True))
    assert by_size == {9: 0, 8: 1, 6: 2, 5: 0, 1: 2}


@pytest.mark.parametrize("topology", ["mesh", "mesh:master=auto"])
def test_every_group_goes_where_no_other_rank_would_be_better(topology: str) -> None:
    """Compare the roots with those found by a trial of every rank for every group, the largest group first; among equally
    good ranks the lowest gets the group.
    """
    rng = np.random.default_rng(4)
    for workers in (1, 2, 3, 7, 30):
        plan = plan_of([int(size) for size in rng.choice([8, 8, 16, 999, *rng.integers(1, 1000, 4)], 90)])
        shares = dict.fromkeys(range(1, workers + 1), 1) | ({MASTER: 2} if topology != "mesh" else {})
        loads, expected = dict.fromkeys(shares, 0), {}
        for group in sorted(plan.groups, key=lambda group: (-group.size, group.index)):
            trials = {rank: Fraction(load + group.size, shares[rank]) for rank, load in loads.items()}
            expected[group.index] = chosen = min(trials, key=lambda rank: (trials[rank], rank))
            loads[chosen] += group.size
        found = [route.root for route in routes_of(Layout(workers), plan, topology)]
        assert found == [expected[group.index] for group in plan.groups]


@pytest.mark.parametrize("servers", [1, 2, 3, 5])
def test_servers_have_equal_parts_and_all_workers_send_to_them(servers: int) -> None:
    layout = Layout(2, servers=servers - 1)
    routes = routes_of(layout, plan_of([7] * 30), f"sharded:servers={servers}")
    loads = {rank: [route.root for route in routes].count(rank) for rank in (MASTER, *layout.serving)}
    assert loads == dict.fromkeys([MASTER, *range(3, 2 + servers)], 30 // servers)
    assert all(list(route.readers) == [1, 2] and route.heirs(route.root) == (1, 2) for route in routes)
    assert shares_of(f"sharded:servers={servers}", 2) == pytest.approx((1 / servers, 0, 1 / servers if servers > 1 else 0))
    up_and_down = sent_in_a_step(f"sharded:servers={servers}", 2, 5, 7)
    assert up_and_down == (2 * 5, 2 * 7)


def test_groups_are_about_four_for_each_root_within_bounds() -> None:
    assert group_bytes_of("star", 45_000_000, 4) == 16 << 20
    assert group_bytes_of("mesh", 45_000_000, 4) == 2_812_500
    assert group_bytes_of("mesh:master=auto", 45_000_000, 4) == 2_812_500
    assert group_bytes_of("sharded:servers=3", 45_000_000, 64) == 3_750_000
    assert group_bytes_of("sharded:servers=1", 45_000_000, 4) == 16 << 20
    assert group_bytes_of("mesh", 2_000_000, 4) == 500_000  # one for each worker, as the model is small
    assert group_bytes_of("mesh:master=auto", 2_400_000, 4) == 400_000  # and two for the master
    assert group_bytes_of("sharded:servers=3", 2_400_000, 64) == 800_000
    assert group_bytes_of("mesh", 400, 4) == 1 << 16
    assert group_bytes_of("mesh", 10**9, 4) == 16 << 20


@pytest.mark.parametrize("topology", ["mesh", "mesh:master=auto"])
@pytest.mark.parametrize("workers", [2, 3, 4, 6, 8])
def test_groups_of_a_small_model_divide_about_evenly(topology: str, workers: int) -> None:
    """Check the shares of LeNet's 2.6 MB, most of which are one tensor: the busiest root has at most a quarter more than its
    share, which for a master is that of two workers.
    """
    sizes = {"conv1": (20, 1, 5, 5), "conv2": (50, 20, 5, 5), "fc1": (500, 1250), "fc2": (10, 500)}
    tensors = [Tensor(f"{name}.weight", shape) for name, shape in reversed(sizes.items())]
    whole = 4 * sum(tensor.size for tensor in tensors)
    plan = make_plan(tensors, "qsgd", group_by="bytes", group_bytes=group_bytes_of(topology, whole, workers))
    loads = Counter[int]()
    for group, route in zip(plan.groups, routes_of(Layout(workers), plan, topology), strict=True):
        loads[route.root] += group.size
    shares = shares_of(topology, workers)
    assert max(4 * load / whole / (shares.worker if root else shares.master) for root, load in loads.items()) < 1.25


def test_programs_refuse_topologies_that_they_cannot_start_or_measure() -> None:
    for topology in ("star", "mesh"):
        require_straight(Config(topology=topology), "psnode bench peers")
    with pytest.raises(
        ConfigurationError, match=r"^psnode bench peers starts no servers: leave out --topology sharded:servers=2$"
    ):
        require_straight(Config(topology="sharded:servers=2"), "psnode bench peers")
    with pytest.raises(ConfigurationError, match=r"^psnode bench peers decides on no topology: name one, not --topology auto$"):
        require_straight(Config(topology="auto"), "psnode bench peers")
    refuse_other_roots(Config(topology="auto", spares=1), constrains=True)  # only the decided topology refuses settings
    with pytest.raises(ConfigurationError, match=r"^psnode bench peers counts passed-on bytes twice: leave out --topology star:"):
        require_straight(Config(topology="star:down=tree"), "psnode bench peers")


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_in_a_gather_every_worker_sends_to_all_workers_and_has_weights_from_itself(workers: int) -> None:
    layout = Layout(workers)
    everybody = tuple(range(1, workers + 1))
    for route in routes_of(layout, PLAN, "gather"):
        assert route.roots == everybody
        assert all(route.up(rank) == everybody and route.down(rank) == rank for rank in everybody)
        assert [route.heirs(rank) for rank in (MASTER, *everybody)] == [(), *((rank,) for rank in everybody)]


@pytest.mark.parametrize("topology", ["star", "star:down=tree", "mesh", "mesh:master=auto", "gather"])
def test_bytes_of_a_step_are_those_of_the_ways_between_different_ranks(topology: str) -> None:
    """Compare the stated bytes with a count over all pairs of different ranks, for groups of equal size: a worker's gradient
    of a group has 5 bytes, and its weights have 7.
    """
    layout, groups = Layout(3), 5
    up = down = 0
    for route in routes_of(layout, plan_of([64] * groups), topology):
        for rank in layout.computing:
            up += 5 * sum(root != rank for root in route.up(rank))
            down += 7 * (route.down(rank) != rank)
    assert sent_in_a_step(topology, 3, 5 * groups, 7 * groups) == pytest.approx((up, down))


@pytest.mark.parametrize(
    ("topology", "reason"),
    [
        ("sharded:servers=2", "would be the last ranks, which are servers"),
        ("mesh:master=auto", "cannot take over the part of the weights that a worker has"),
    ],
)
def test_spares_are_refused_where_weights_are_dealt(topology: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^--spares {reason} under --topology {topology}: use --topology star$"):
        refuse_other_roots(Config(topology=topology, spares=1))
    refuse_other_roots(Config(topology="sharded:servers=1", spares=1))


def test_processors_that_round_differently_are_refused_only_where_every_worker_updates_all_weights() -> None:
    once, twice, threads = {"fma": True, "aten": "AVX2"}, {"fma": False, "aten": "AVX2"}, {1: 4, 2: 4, 3: 4}
    for topology in ("star", "mesh"):
        refuse_unlike_processors(Config(topology=topology), {1: once, 2: twice}, threads)
    refuse_unlike_processors(Config(topology="gather"), {1: once, 2: dict(once)}, threads)
    alone = r"^the processors of ranks 1 and 3 round .* under --topology gather: use --topology mesh$"
    with pytest.raises(ConfigurationError, match=alone):
        refuse_unlike_processors(Config(topology="gather"), {1: once, 2: once, 3: twice}, threads)


def test_numbers_of_threads_have_to_be_equal_only_where_an_optimizer_adds_up_tensors() -> None:
    alike, threads = {rank: {"fma": True, "aten": "AVX2"} for rank in (1, 2)}, {1: 4, 2: 8}
    named = r"^ranks 1 and 2 have 4 and 8 threads, by which --optimizer adafactor .* under --topology gather: set --threads$"
    refuse_unlike_processors(Config(topology="gather", optimizer="adamw"), alike, threads)
    refuse_unlike_processors(Config(topology="mesh", optimizer="adafactor"), alike, threads)
    with pytest.raises(ConfigurationError, match=named):
        refuse_unlike_processors(Config(topology="gather", optimizer="adafactor"), alike, threads)
