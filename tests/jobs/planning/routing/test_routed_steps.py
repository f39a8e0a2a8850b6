"""Modelled steps of groups on routes with several roots, against figures by hand and bounds of the links."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from psnode.errors import ConfigurationError
from psnode.exchange.routes.route import Route
from psnode.exchange.routes.topologies import routes_of
from psnode.jobs.planning.forecast import Forecast, forecasts, judge, limit_of, topology_sentences
from psnode.jobs.planning.job_step import job_step, step_spans
from psnode.jobs.planning.profile import GroupCosts, HostCosts, Profile, SchemeCosts, TensorTimes
from psnode.jobs.planning.routing.route_lines import loads_of
from psnode.jobs.planning.routing.routed_groups import routed
from psnode.jobs.planning.scenario import GOODPUT, Scenario
from psnode.plans.groups import Group, Plan, Segment, Tensor
from psnode.plans.prediction import SPANS
from psnode.plans.roles import Layout
from psnode.protocol.wire import HEADER_BYTES

FREE = HostCosts(0.0, 0.0, 0.0, 0.0, 4, 1.0)
NOTHING = GroupCosts(0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
RATE = 8e6 / GOODPUT  # a million bytes of payload per second
TWO = range(1, 3)


def scheme(*groups: dict[str, Any]) -> SchemeCosts:
    return SchemeCosts(tuple(GroupCosts(**{**NOTHING.__dict__, **group}) for group in groups), 0.0, 0.0, True)


def profile(costs: SchemeCosts, passes: float = 0.3) -> Profile:
    """Return a profile whose forward pass takes a third of `passes`."""
    tensors = (TensorTimes((1000, 1000), passes * 2 / 3, 0.0),)
    return Profile("model", 1, passes / 3, passes * 2 / 3, 0.0, tensors, FREE, {"coded": costs}, {})


def seconds(costs: SchemeCosts, scenario: Scenario, routes: list[Route], passes: float = 0.3) -> float:
    return job_step(profile(costs, passes), costs, scenario, routes).seconds


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_root_that_is_a_worker_gets_the_gradients_of_the_others_and_sends_them_its_weights(workers: int) -> None:
    """Check one group: the frames of all workers but the root itself pass the root's link in each direction. The root
    decodes its own meanwhile.
    """
    costs = scheme({"up": 100_000, "down": 50_000, "ready": 0.2, "encode": 0.01, "apply": 0.02, "decode": 0.03, "update": 0.05})
    found = seconds(costs, Scenario(workers, RATE, 0.004, 4), [Route(1, range(1, workers + 1))])
    others = workers - 1
    decoded = others * 0.03 if others else 0.03
    latency = 0.004 if others else 0.0
    assert found == pytest.approx(0.3 + 0.01 + 0.02 + decoded + 0.05 + others * (0.1 + 0.05) + latency)


def test_messages_about_groups_of_other_roots_occupy_cores() -> None:
    """Check two workers, each the root of a group, and a core on which all work is done one after another. Of messages with
    two ends of .002 s each there are two gradients, two weights, two reports, two about groups that are updated, two orders to
    open the next round, and two about the complete version.
    """
    costs = scheme({"ready": 0.2}, {"ready": 0.2})
    measured = replace(profile(costs), host=replace(FREE, message=0.002))
    found = job_step(measured, costs, Scenario(2, None, 0.0, 1, shared=True), [Route(1, TWO), Route(2, TWO)])
    assert found.seconds == pytest.approx(2 * 0.3 + 12 * 2 * 0.002)


def test_the_spans_are_those_of_the_last_root_and_of_the_worker_whose_gradient_reaches_it_last() -> None:
    """Check the spans if the root is worker 1, which has its own weights at once and decodes its own gradient while the
    other arrives.
    """
    costs = scheme({"up": 100_000, "down": 50_000, "ready": 0.2, "encode": 0.01, "apply": 0.02, "decode": 0.03, "update": 0.05})
    scenario = Scenario(2, RATE, 0.004, 4)
    found = step_spans(profile(costs), costs, scenario, [Route(1, TWO)])
    times = {kind: [pytest.approx(span[2:], abs=1e-6) for span in found if span.kind == kind] for kind in SPANS}
    assert times == {
        "out": [(0.0, 0.052)], "apply": [(0.052, 0.072)], "passes": [(0.072, 0.372)], "encode": [(0.372, 0.382)],
        "in": [(0.382, 0.484)], "decode": [(0.33, 0.36), (0.484, 0.514)], "update": [(0.514, 0.564)],
    }  # fmt: skip
    assert {span.group for span in found if span.kind != "passes"} == {0}


def test_spans_of_every_topology_fill_a_step_and_a_gather_sends_no_weights() -> None:
    """Check that the last span is the update with which the version ends, and that the version takes the time of a step,
    within 2 %: versions of a mesh last up to 1 % more or less.
    """
    count, scenario, layout = 6, Scenario(3, RATE, 0.0, 4), Layout(3)
    costs = scheme(*[{"up": 50_000, "down": 40_000, "ready": 0.1, "encode": 0.01, "decode": 0.01, "update": 0.01}] * count)
    tensors = tuple(Tensor(f"w{n}", (4,)) for n in range(count))
    plan = Plan(tensors, tuple(Group(n, (Segment(n, "identity", 4 * n, (4,)),)) for n in range(count)))
    for topology in ("star", "star:down=tree", "mesh", "gather"):
        routes = routes_of(layout, plan, topology)
        found = step_spans(profile(costs), costs, scenario, routes)
        length = job_step(profile(costs), costs, scenario, routes).seconds
        assert max(span.end for span in found) == pytest.approx(length, rel=0.02), topology
        kinds = {span.kind for span in found}
        assert kinds == set(SPANS) - {"apply"} - ({"out"} if topology == "gather" else set()), topology
        assert max(span.end for span in found if span.kind == "update") == max(span.end for span in found)


def test_two_roots_use_both_links_both_ways_at_once() -> None:
    """Check two workers: each sends half of its gradient, then half of the weights, that is, half of u + v bytes in each
    direction.
    """
    costs = scheme(*[{"up": 100_000, "down": 50_000, "ready": 0.2}] * 2)
    found = seconds(costs, Scenario(2, RATE, 0.004, 4), [Route(1, TWO), Route(2, TWO)])
    assert found == pytest.approx(0.3 + 0.1 + 0.05 + 0.004)


@pytest.mark.parametrize("workers", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("each", [1, 4])
def test_a_step_that_links_limit_takes_the_bytes_of_one_gradient_and_one_set_of_weights(workers: int, each: int) -> None:
    """Check that (P - 1) / P (u + v) bytes pass every link in each direction, for P workers and equal groups. Here u = v = 1
    MB, and passes take 20 ms.
    """
    count = each * workers
    whole = {"up": 10**6 / count, "down": 10**6 / count}
    groups = [
        whole | {"ready": 0.04 / 3 * (n + 1) / count, "needed": 0.02 / 3 * (count - n - 1) / count} for n in range(count)
    ]  # fmt: skip
    routes = [Route(1 + n % workers, range(1, workers + 1)) for n in range(count)]
    found = seconds(scheme(*groups), Scenario(workers, RATE, 0.0, 4), routes, passes=0.02)
    bound = (workers - 1) / workers * 2
    assert bound <= found <= bound + 0.02 + 1e-9


@pytest.mark.parametrize(("cores", "expected"), [(1, 0.35), (2, 0.3)])
def test_a_root_shares_the_cores_of_its_host_with_the_backward_pass(cores: int, expected: float) -> None:
    """Check that two decodings of .02 s and an update of .01 s lengthen the backward pass of the first worker on one core,
    but not on two.
    """
    costs = scheme({"ready": 0.05, "decode": 0.02, "update": 0.01, "needed": 0.09}, {"ready": 0.2})
    assert seconds(costs, Scenario(2, None, 0.0, cores), [Route(1, TWO), Route(2, TWO)]) == pytest.approx(expected)


def test_the_master_hears_of_a_version_that_ends_elsewhere_before_it_tells_the_workers() -> None:
    """Check latencies: a gradient takes half a round trip. If the root is a worker, the way from it to the master and on to
    the workers takes two halves more.
    """
    costs = scheme({"ready": 0.2})
    assert seconds(costs, Scenario(2, None, 0.5, 4), [Route(0, TWO)]) == pytest.approx(0.3 + 0.25 + 0.25)
    assert seconds(costs, Scenario(2, None, 0.5, 4), [Route(1, TWO)]) == pytest.approx(0.3 + 0.25 + 0.25 + 0.25)


@dataclass(frozen=True, slots=True)
class Chain(Route):
    """A route on which weights go from the root to the first reader, which passes them on."""

    def down(self, rank: int) -> int:
        return rank - 1

    def heirs(self, rank: int) -> tuple[int, ...]:
        return (rank + 1,) if rank < max(self.readers) else ()


def test_readers_may_pass_weights_on() -> None:
    """Check that the second worker gets its weights .052 s after the first, and that the workers' gradients share the link:
    .2 s for both.
    """
    costs = scheme({"up": 100_000, "down": 50_000, "ready": 0.2})
    found = seconds(costs, Scenario(2, RATE, 0.004, 4), [Chain(0, TWO)])
    assert found == pytest.approx(0.052 + 0.3 + 2 * 0.1 + 0.002)


@pytest.mark.parametrize(("workers", "sets"), [(1, 1), (2, 2), (6, 4), (14, 6)])
def test_weights_that_workers_pass_on_take_two_sets_for_every_doubling(workers: int, sets: int) -> None:
    """Check the time until all workers have the weights, if a set takes .05 s: in full trees of 2, 6 and 14 workers two sets
    per level, in a star `workers` sets.
    """
    costs = scheme({"down": 50_000, "ready": 0.2})
    plan = Plan((Tensor("w", (4,)),), (Group(0, (Segment(0, "identity", 0, (4,)),)),))
    for topology, expected in (("star", workers), ("star:down=tree", sets)):
        routes = [*routes_of(Layout(workers), plan, topology)]
        assert seconds(costs, Scenario(workers, RATE, 0.0, 4), routes) == pytest.approx(0.3 + 0.05 * expected)


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_where_all_workers_update_each_takes_the_gradients_of_the_others_and_no_weights(workers: int) -> None:
    """Check P workers: all links carry P - 1 gradients in each direction at once; every worker then decodes those of the
    others, and updates.
    """
    costs = scheme({"up": 100_000, "down": 50_000, "ready": 0.2, "encode": 0.01, "apply": 0.02, "decode": 0.03, "update": 0.05})
    plan = Plan((Tensor("w", (4,)),), (Group(0, (Segment(0, "identity", 0, (4,)),)),))
    found = seconds(costs, Scenario(workers, RATE, 0.004, 4), [*routes_of(Layout(workers), plan, "gather")])
    others = workers - 1
    assert found == pytest.approx(0.3 + 0.01 + others * (0.1 + 0.03) + (0.002 if others else 0.03) + 0.05 + 0.02)


QSGD = "qsgd:levels=7"
TENSORS = tuple(Tensor(f"w{n}", (65_536,)) for n in range(4))


def measured(*, up: int = 26_266, grouping: dict[str, Any] | None = None) -> Profile:
    """Return a profile of one group of 262144 coordinates, each of which takes a tenth of a byte up and four bytes down."""
    whole = Plan(TENSORS, (Group(0, (Segment(0, QSGD, 0, (262_144,)),)),))
    costs = SchemeCosts(
        (GroupCosts(up, 52 + 4 * 262_144, 0.8, 0.4, 0.16, 0.08, 0.2, 0.0, coded=262_144),), 0.0, 0.0, True,
        settings={"scheme": "qsgd"}, plan=whole.to_dict(), grouping={"code_small": True, **(grouping or {})},
    )  # fmt: skip
    tensors = tuple(TensorTimes((65_536,), 0.05 * (n + 1), 0.09 - 0.03 * n, f"w{n}") for n in range(4))
    return Profile("model", 1, 0.1, 0.2, 0.0, tensors, FREE, {"qsgd": costs}, {"fp32": 0.0})


def test_a_small_model_that_is_one_group_in_a_star_has_one_a_worker_where_it_is_dealt() -> None:
    """Check that a megabyte is cut into two pieces for a mesh of two workers, with seconds and bytes in proportion to their
    coordinates.
    """
    found = routed(measured(), "qsgd", "mesh", 2)
    assert found.sizes == (131_072,) * 2
    assert [route.root for route in found.routes] == [1, 2]
    assert {(group.up, group.down) for group in found.costs.groups} == {(52 + 13_107, 52 + 4 * 131_072)}
    assert [group.encode for group in found.costs.groups] == pytest.approx([0.4] * 2)
    assert [group.ready for group in found.costs.groups] == pytest.approx([0.1, 0.2])


@pytest.mark.parametrize("grouping", [{"group_by": "layer"}, {"group_bytes": 1 << 20}])
def test_groups_of_a_size_that_was_asked_for_stay(grouping: dict[str, Any]) -> None:
    found = routed(measured(grouping=grouping), "qsgd", "mesh", 2)
    assert found.sizes == (262_144,)
    assert [route.root for route in found.routes] == [1]


def test_under_the_usual_topology_groups_are_the_measured_ones() -> None:
    known = measured()
    found = routed(known, "qsgd", "star", 3)
    assert found.costs == known.schemes["qsgd"]
    assert found.routes == routes_of(Layout(3), Plan.from_dict(found.costs.plan))


def test_where_all_workers_update_the_update_is_that_of_dense_weights() -> None:
    """Check that gather takes the update of dense weights, .02 s and .01 s to apply, instead of the scheme's own, which
    codes the weights and takes .08 s.
    """
    known = measured()
    [group] = known.schemes["qsgd"].groups
    plain = replace(known.schemes["qsgd"], groups=(replace(group, down=9, apply=0.01, update=0.02),))
    found = routed(replace(known, schemes={**known.schemes, "dense": plain}), "qsgd", "gather", 3)
    assert found.costs.groups == (replace(group, down=HEADER_BYTES + 4 * 262_144, apply=0.01, update=0.02),)
    assert [(load.received, load.sent) for load in loads_of(found)[1:]] == [(2 * group.up, 2 * group.up)] * 3
    alone = routed(known, "qsgd", "gather", 3)
    assert alone.costs.groups == (group,)


def test_servers_behind_the_workers_share_what_the_master_has_alone() -> None:
    """Check two servers, ranks 0 and 5: each gets half of the gradients of four workers, and sends half of the weights to
    each of them.
    """
    known = measured()
    found = routed(known, "qsgd", "sharded:servers=2", 4)
    up, down = (sum(getattr(group, way) for group in found.costs.groups) for way in ("up", "down"))
    loads = {load.rank: (load.received, load.sent) for load in loads_of(found)}
    assert loads == {0: (2 * up, 2 * down), 5: (2 * up, 2 * down), **dict.fromkeys(range(1, 5), (down, up))}
    assert {row.topology for row in forecasts(known, Scenario(4, RATE, 0.0, 4), ("sharded:servers=2",)) if not row.peer} == {
        "sharded:servers=2"
    }


def test_forecasts_of_several_topologies_stand_side_by_side_and_the_verdict_names_the_flag() -> None:
    """Check the forecasts at 1 MB/s: the master of four workers sends 4.2 MB in a star; a worker of a mesh sends three
    quarters of 1.07 MB, a gradient and the weights.

    Passes, coding, decoding and the update take 2.22 s in a star, and nothing overlaps.
    """
    rows = forecasts(measured(), Scenario(4, RATE, 0.0, 4), ("star", "mesh"))
    by = {row.topology: row for row in rows if not row.peer}
    assert by["star"].seconds == pytest.approx(2.22 + 4 * (26_266 + 52 + 4 * 262_144) / 1e6)
    assert 0.8 < by["mesh"].seconds < 0.8 + 2.22
    assert by["mesh"].sent == pytest.approx(0.75 * (26_214 + 4 * 262_144), rel=0.01)
    [told] = topology_sentences(rows, judge(rows))
    assert told.startswith("qsgd takes ")
    assert " with --topology mesh of psnode train; " in told
    assert told.endswith(" with --topology star")


def test_a_mesh_of_many_workers_has_a_forecast_too() -> None:
    """Check a mesh of 400 workers: a megabyte is 16 groups of the least size, each with a worker as its root. A root sends
    the weights of its group to 399 workers, and its gradients of the other 15 groups to their roots.
    """
    [row] = [row for row in forecasts(measured(), Scenario(400, RATE, 0.0, 4), ("mesh",)) if not row.peer]
    weights, gradient = 399 * (52 + 65_536), 15 * (52 + 1638.4)
    assert row.sent == pytest.approx(weights + gradient, rel=1e-4)
    assert weights / 1e6 < row.seconds < 2.22 + (399 * 0.4 + 400 * (52 + 1638.4) / 1e6) / 4 + (weights + gradient) / 1e6


def test_of_topologies_within_two_percent_the_usual_one_is_the_best() -> None:
    star, mesh = (Forecast("dense", each, {}, 0.1, "link", 1, topology=name) for name, each in (("star", 1.01), ("mesh", 1.0)))
    assert judge([mesh, star]).best is star
    assert topology_sentences([mesh, star], judge([mesh, star])) == [
        "dense takes 1,010 ms with --topology star of psnode train; 1,000 ms with --topology mesh"
    ]


def test_what_cannot_be_predicted_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigurationError, match=r"takes too long to predict under --topology mesh: ask for fewer workers$"):
        forecasts(replace(measured(), ddp={}), Scenario(400, RATE, 0.0, 4, shared=True), ("mesh",))
    with pytest.raises(ConfigurationError, match=r"under --topology star:down=tree: ask for fewer workers$"):
        forecasts(replace(measured(), ddp={}), Scenario(6000, RATE, 0.0, 4), ("star:down=tree",))
    old = Profile("model", 1, 0.1, 0.2, 0.0, (), FREE, {"qsgd": scheme({"up": 1})}, {})
    with pytest.raises(ConfigurationError, match="this profile holds no plans, since an earlier version wrote it"):
        forecasts(old, Scenario(2, RATE, 0.0, 4), ("mesh",))
    assert limit_of(measured(), Scenario(6, None, 0.0, 4), ("star", "mesh")) is None
