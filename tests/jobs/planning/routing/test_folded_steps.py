"""Modelled steps in which one worker stands for all of them, against figures by hand and the graph of all frames."""

from __future__ import annotations

import random
import statistics

import pytest

from psnode.config import Config
from psnode.errors import ConfigurationError
from psnode.exchange.routes.topologies import routes_of
from psnode.jobs.planning.job_step import job_step
from psnode.jobs.planning.profile import GroupCosts, HostCosts, Profile, SchemeCosts, TensorTimes
from psnode.jobs.planning.routing import folded_step as folded
from psnode.jobs.planning.routing.folded_step import bytes_sent, folded_step, folds
from psnode.jobs.planning.routing.route_lines import loads_of
from psnode.jobs.planning.routing.routed_groups import RoutedGroups
from psnode.jobs.planning.scenario import GOODPUT, Scenario
from psnode.plans.groups import Group, Plan, Segment, Tensor
from psnode.plans.roles import Layout

FREE = HostCosts(0.0, 0.0, 0.0, 0.0, 4, 1.0)
RATE = 8e6 / GOODPUT  # a million bytes of payload per second
FOLDED = ("mesh", "mesh:master=auto", "gather", "sharded:servers=4")


def job(
    topology: str, workers: int, groups: list[GroupCosts], *, forward: float = 0.1, host: HostCosts = FREE
) -> tuple[Profile, RoutedGroups]:
    """Return a profile, whose backward pass takes twice as long as the forward pass, and its groups in a job."""
    size = 8 * len(groups)
    plan = Plan(
        (Tensor("w", (size,)),), tuple(Group(n, (Segment(0, "identity", 8 * n, (8,)),)) for n in range(len(groups)))
    )  # fmt: skip
    costs = SchemeCosts(tuple(groups), 0.0, 0.0, True)
    tensors = (TensorTimes((size,), 2 * forward, 0.0, "w"),)
    layout = Layout(workers, servers=Config(topology=topology).servers)
    profile = Profile("model", 1, forward, 2 * forward, 0.0, tensors, host, {"coded": costs}, {})
    return profile, RoutedGroups(costs, plan, tuple(routes_of(layout, plan, topology)), layout)


def spread(count: int, *, forward: float = 0.1, **whole: float) -> list[GroupCosts]:
    """Return equal groups that are ready one after another, and needed in the opposite order. `whole`: the sums of bytes and
    seconds over all groups.
    """
    each = {name: value / count for name, value in whole.items()}
    for name in ("up", "down"):
        each[name] = round(each.get(name, 0))
    ranks = [(n + 1) / count for n in range(count)]
    known = {"encode": 0.0, "apply": 0.0, "decode": 0.0, "update": 0.0}
    return [GroupCosts(**{**known, **each, "ready": 2 * forward * x, "needed": forward * (1 - x)}) for x in ranks]  # type: ignore[arg-type]


ONE = GroupCosts(100_000, 50_000, 0.01, 0.02, 0.03, 0.05, 0.2, 0.0)


@pytest.mark.parametrize("workers", [2, 5, 1000])
def test_where_all_workers_update_each_takes_the_gradients_of_the_others(workers: int) -> None:
    """Check one group of P workers: P - 1 gradients pass every link in each direction at once; every worker decodes those of
    the others, and updates.
    """
    found = folded_step(*job("gather", workers, [ONE]), Scenario(workers, RATE, 0.004, 4)).seconds
    others = workers - 1
    assert found == pytest.approx(0.3 + 0.01 + others * (0.1 + 0.03) + 0.002 + 0.05 + 0.02)


@pytest.mark.parametrize("workers", [1, 2, 5, 1000])
def test_a_root_sends_to_all_others_what_it_has_made_of_their_gradients(workers: int) -> None:
    found = folded_step(*job("mesh", workers, [ONE]), Scenario(workers, RATE, 0.004, 4)).seconds
    others = workers - 1
    decoded = others * 0.03 if others else 0.03
    latency = 0.004 if others else 0.0
    assert found == pytest.approx(0.3 + 0.01 + 0.02 + decoded + 0.05 + others * (0.1 + 0.05) + latency)


@pytest.mark.parametrize("workers", [4, 100, 300])
@pytest.mark.parametrize("topology", ["mesh", "gather", "sharded:servers=4"])
def test_a_step_that_links_limit_takes_the_bytes_of_the_busiest_link(workers: int, topology: str) -> None:
    """Check steps of P workers with u = v = 1 MB for a gradient and the weights, and passes of 30 ms.

    In each direction a link carries (P - 1) / P (u + v) in a mesh and (P - 1) u in a gather; the link of each of four
    servers carries P u / 4. The first gradient and the last weights of a root cannot overlap with other frames.
    """
    count = 4 * workers if topology == "mesh" else 40
    groups = spread(count, forward=0.01, up=10**6, down=10**6)
    found = folded_step(*job(topology, workers, groups, forward=0.01), Scenario(workers, RATE, 0.0, 4)).seconds
    least, more = {
        "mesh": (2 * (workers - 1) / workers, 0.5),
        "gather": (workers - 1, 0.0),
        "sharded:servers=4": (
            workers / 4,
            workers / 40 + 1,
        ),  # a group is a tenth of a server's, and a worker's own link has 2 MB
    }[topology]
    assert 0.999 * least <= found <= least + more + 0.04


@pytest.mark.parametrize("topology", FOLDED)
def test_in_the_long_run_bursts_carry_nothing(topology: str) -> None:
    """Check that a step takes at least the time of the bytes on the busiest link at its rate, although a burst of all steps'
    bytes has been saved.
    """
    profile, groups = job(topology, 4, spread(16, up=10**6, down=10**6))
    busiest = max(max(load.sent, load.received) for load in loads_of(groups))
    found = folded_step(profile, groups, Scenario(4, RATE, 0.0, 4, burst=1e9)).seconds
    assert found == pytest.approx(busiest / 1e6, rel=1e-3)


def random_job(seed: int, topology: str, workers: int) -> tuple[Profile, RoutedGroups, Scenario]:
    """Return a job whose links, cores or passes may be the bottleneck."""
    rng = random.Random(seed)
    count = 4 * workers if topology.startswith("mesh") else rng.randint(5, 20)
    up, forward = rng.choice([1e5, 1e6, 1e7, 4e7]), rng.choice([0.01, 0.05, 0.3])
    seconds = {"encode": rng.choice([0.001, 0.05]), "decode": rng.choice([0.0005, 0.03]), "update": rng.choice([0.002, 0.02])}
    groups = spread(count, forward=forward, up=up, down=up * rng.choice([0.3, 1, 3]), apply=seconds["decode"], **seconds)
    host = HostCosts(3e-10, 3e-10, 3e-5, 1e-10, 4, 0.9)
    scenario = Scenario(workers, rng.choice([1e8, 1e9, 1e10]), 2e-4, rng.choice([2, 4, 16]))
    return *job(topology, workers, groups, forward=forward, host=host), scenario


@pytest.mark.parametrize("topology", FOLDED)
def test_one_worker_stands_for_four_and_for_eight(topology: str) -> None:
    """Check that folded steps differ from the graph of all frames by less than a fifth, and in the median by less than a
    twentieth.
    """
    errors = []
    for workers, seeds in ((4, 12), (8, 6)):
        for seed in range(seeds):
            profile, groups, scenario = random_job(seed, topology, workers)
            whole = job_step(profile, groups.costs, scenario, groups.routes).seconds
            errors.append(abs(folded_step(profile, groups, scenario).seconds / whole - 1))
    assert statistics.median(errors) < 1 / 20
    assert max(errors) < 1 / 5


@pytest.mark.parametrize("topology", FOLDED)
def test_a_worker_sends_the_bytes_of_its_link(topology: str) -> None:
    for workers in (1, 2, 5):
        _, groups = job(topology, workers, spread(20, up=10**6, down=3 * 10**5))
        for rank in groups.layout.computing:
            assert bytes_sent(groups, rank) == loads_of(groups)[rank].sent


def test_roots_that_stand_for_their_neighbours_change_a_step_by_little(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(8):
        profile, groups, scenario = random_job(seed, "mesh", 32)
        one_by_one = folded_step(profile, groups, scenario).seconds
        monkeypatch.setattr(folded, "_MOST_ROOTS", 16)
        assert folded_step(profile, groups, scenario).seconds == pytest.approx(one_by_one, rel=0.05)
        monkeypatch.undo()


def test_groups_of_unequal_sizes_take_at_least_the_time_of_the_largest_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check a lower bound of the step: all workers but one send the largest group to its root, which then sends its weights
    to all of them.
    """
    rng = random.Random(3)
    monkeypatch.setattr(folded, "_MOST_ROOTS", 8)
    for _ in range(5):
        sizes = [rng.randint(200, 12_800) for _ in range(64)]
        groups = [GroupCosts(4 * n, 4 * n, 0, 0, 0, 0, 0.2 * (k + 1) / 64, 0.1) for k, n in enumerate(sizes)]
        step = folded_step(*job("mesh", 64, groups), Scenario(64, RATE, 0.0, 4)).seconds
        assert step >= 2 * 63 * 4 * max(sizes) / 1e6


def test_the_rate_of_the_master_is_that_of_no_other_server() -> None:
    scenario = Scenario(9, RATE, 0.0, 4, master_rate=10 * RATE)
    profile, groups = job("sharded:servers=4", 9, spread(2, up=10**6, down=10**6))
    whole = job_step(profile, groups.costs, scenario, groups.routes).seconds
    assert folded_step(profile, groups, scenario).seconds == pytest.approx(whole, rel=0.1)


def test_chains_and_shared_cores_are_not_folded() -> None:
    profile, tree = job("star:down=tree", 8, [ONE])
    _, mesh = job("mesh", 8, [ONE])
    assert [folds(tree, Scenario(8, RATE, 0.0, 4)), folds(mesh, Scenario(8, RATE, 0.0, 4, shared=True))] == [False, False]
    assert folds(mesh, Scenario(8, RATE, 0.0, 4))
    with pytest.raises(ConfigurationError, match="cannot stand for all"):
        folded_step(profile, tree, Scenario(8, RATE, 0.0, 4))
