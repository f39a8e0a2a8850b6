"""Simulated jobs whose weights are updated on several ranks, against figures by hand, the planner's engine, and other jobs."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import Any

import pytest

from psnode.config.load import load
from psnode.errors import ConfigurationError, TransportError
from psnode.exchange.routes.topologies import routes_of
from psnode.jobs.planning import job_step
from psnode.jobs.planning.profile import GroupCosts, HostCosts, Profile, SchemeCosts, TensorTimes
from psnode.jobs.planning.routing.routed_groups import RoutedGroups
from psnode.jobs.planning.scenario import GOODPUT, Scenario
from psnode.jobs.simulating.disturbances import Death, Spread, Standstill
from psnode.jobs.simulating.simulated_job import Disturbances, SimulatedJob, groups_of, simulate_job
from psnode.plans.groups import Group, Plan, Segment, Tensor
from psnode.plans.roles import Layout
from psnode.report.critical import paths, spans_of

FREE = HostCosts(0.0, 0.0, 0.0, 0.0, 64, 1.0)
NOTHING = GroupCosts(0, 0, 0.0, 0.0, 0.0, 0.0, 0.2, 0.0)
RATE = 8e6 / GOODPUT  # a million bytes of payload per second
TOPOLOGIES = ("star", "star:down=tree", "mesh", "mesh:master=auto", "sharded:servers=2", "sharded:servers=3", "gather")


def profile(host: HostCosts = FREE, **schemes: SchemeCosts) -> Profile:
    return Profile("model", 1, 0.1, 0.2, 0.0, (TensorTimes((1000,), 0.2, 0.0, "w"),), host, schemes, {})


def costs(*groups: dict[str, Any], bookkeeping: float = 0.0, extra: float = 0.0) -> SchemeCosts:
    return SchemeCosts(tuple(replace(NOTHING, **group) for group in groups), bookkeeping, extra, True)


def routed(found: SchemeCosts, topology: str, workers: int) -> RoutedGroups:
    """Return the groups on their routes; all groups have the same size."""
    groups = tuple(Group(n, (Segment(n, "identity", 4 * n, (4,)),)) for n in range(len(found.groups)))
    plan = Plan((Tensor("w", (4 * len(groups),)),), groups)
    layout = Layout(workers, servers=load({"topology": topology}, {}).servers)
    return RoutedGroups(found, plan, routes_of(layout, plan, topology), layout)


def job(
    found: SchemeCosts,
    topology: str,
    scenario: Scenario,
    steps: int,
    among: Disturbances | None = None,
    host: HostCosts = FREE,
    **rule: Any,
) -> SimulatedJob:
    config = load({"topology": topology, **rule}, {})
    return simulate_job(
        profile(host), routed(found, topology, scenario.workers), scenario, config, steps, among or Disturbances()
    )


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_in_a_mesh_the_parts_of_gradients_and_weights_pass_every_link_both_ways_at_once(workers: int) -> None:
    """Check a mesh in which every worker is the root of one group, of .1 s up and .05 s down. Gradients and weights each
    take half a round trip.

    The master learns of the closed groups, and the workers of the version, while the weights pass the links.
    """
    found = job(costs(*[{"up": 100_000, "down": 50_000}] * workers), "mesh", Scenario(workers, RATE, 0.006, 64), 5)
    assert found.step_times[1:] == pytest.approx([0.3 + (workers - 1) * 0.15 + 0.006] * 4)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_frames_of_one_group_meet_at_the_link_of_its_root(workers: int) -> None:
    """Check one group: all workers but the root itself send for .1 s and receive for .05 s; the root's own frames take no
    time.
    """
    scenario = Scenario(workers, RATE, 0.0, 64)
    found = job(costs({"up": 100_000, "down": 50_000}), "mesh", scenario, 4)
    assert found.step_times == pytest.approx([0.3 + (workers - 1) * 0.1, *[0.3 + (workers - 1) * 0.15] * 3])
    [star] = {round(each, 9) for each in job(costs({"up": 100_000, "down": 50_000}), "star", scenario, 4).step_times[1:]}
    assert star == pytest.approx(0.3 + workers * 0.15)


@pytest.mark.parametrize("workers", [4, 8])
def test_the_bytes_of_a_mesh_do_not_grow_with_the_workers_and_those_of_a_star_do(workers: int) -> None:
    """Check P workers with u = v = .4 s for a gradient and the weights: a mesh takes (P - 1) / P (u + v), and a star P u and
    the last group's part of P v.
    """
    group = {"up": 400_000 // workers, "down": 400_000 // workers}
    scenario = Scenario(workers, RATE, 0.0, 64)
    mesh, star = (job(costs(*[group] * workers), each, scenario, 3).step_times[-1] for each in ("mesh", "star"))
    assert mesh == pytest.approx(0.3 + (workers - 1) / workers * 0.8)
    assert star == pytest.approx(0.3 + workers * 0.4 + 0.4)


@pytest.mark.parametrize(
    ("topology", "groups"),
    [("sharded:servers=1", 12), ("sharded:servers=2", 6), ("sharded:servers=4", 3), ("mesh:master=auto", 4)],
)
def test_servers_share_the_bytes_of_the_star(topology: str, groups: int) -> None:
    """Check that the busiest rank, the master, decides the step. Of the 12 groups, `groups` have the master as their root;
    each takes 10 ms in each direction for each of four workers.

    The weights of a group are sent while the gradients of the next one arrive.
    """
    found = job(costs(*[{"up": 10_000, "down": 10_000}] * 12), topology, Scenario(4, RATE, 0.0, 64), 4)
    assert found.step_times[1:] == pytest.approx([0.3 + 4 * (groups + 1) * 0.01] * 3)


@pytest.mark.parametrize("workers", [2, 6])
def test_weights_that_workers_pass_on_take_two_sets_for_every_doubling(workers: int) -> None:
    """Check the time until all workers have the weights, if a set takes .05 s, in trees of full levels with 2 and 6 workers."""
    found = job(costs({"down": 50_000}), "star:down=tree", Scenario(workers, RATE, 0.0, 64), 3)
    assert found.step_times[1:] == pytest.approx([0.3 + 0.05 * {2: 2, 6: 4}[workers]] * 2)


def test_in_a_gather_every_worker_gets_all_gradients_and_no_weights() -> None:
    found = job(costs({"up": 100_000, "down": 50_000}), "gather", Scenario(3, RATE, 0.0, 64), 3)
    assert found.step_times == pytest.approx([0.3 + 2 * 0.1] * 3)
    assert found.sent == [0, *[3 * 200_000] * 3] == found.received
    assert [(version.up, version.down) for version in found.versions] == [(600_000, 0)] * 3


@pytest.mark.parametrize(("cores", "seconds"), [(1, 0.35), (2, 0.3)])
def test_a_root_shares_the_cores_of_its_host_with_the_backward_pass(cores: int, seconds: float) -> None:
    """Check that two decodings of .02 s and an update of .01 s lengthen the backward pass of the first worker on one core,
    but not on two.
    """
    groups = costs({"ready": 0.05, "decode": 0.02, "update": 0.01, "needed": 0.09}, {"ready": 0.2})
    found = job(groups, "mesh", Scenario(2, None, 0.0, cores), 4)
    assert found.step_times[-1] == pytest.approx(seconds)


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("seed", range(12))
def test_versions_end_when_they_do_in_the_planner_s_graph(topology: str, seed: int) -> None:
    """Compare the ends of versions with the planner's, a different program, which runs a graph of activities. The simulation
    has threads share cores only if workers update weights, so cores are limited only under mesh and gather.

    The planner's last step is left out, since no next forward pass delays it.
    """
    chance = random.Random(f"{topology} {seed}")
    workers, groups = chance.randint(1, 4), chance.randint(1, 6)
    sharing = topology in ("mesh", "gather")
    host = HostCosts(0.0, 0.0, 0.0, 0.0, 64, chance.choice((1.0, 0.8)) if sharing else 1.0)
    ready, needed = ([chance.uniform(0, most) for _ in range(groups)] for most in (0.2, 0.1))
    found = costs(
        *(
            {
                "ready": begin, "needed": use, "up": chance.randint(0, 100_000), "down": chance.randint(0, 100_000),
                **{name: chance.uniform(0, 0.01) for name in ("encode", "decode", "update")},
            }
            for begin, use in zip(sorted(ready), sorted(needed, reverse=True), strict=True)
        ),
        extra=0.002,
    )  # fmt: skip
    scenario = Scenario(
        workers, chance.choice((None, 1e8)), chance.choice((0.0, 0.004)), chance.choice((1, 2, 64)) if sharing else 64,
        uneven=chance.choice((0.0, 0.4)),
    )  # fmt: skip
    given = routed(found, topology, workers)
    planned = job_step._Job(profile(host), found, scenario, given.routes)
    times = planned.graph.run()
    ends = [
        max(
            float(times.end[note.last]) + (scenario.round_trip / 2 if note.rank else 0.0)
            for note in notes
            if note.kind == "update"
        )
        for notes in planned.notes
    ]
    versions = job(found, topology, scenario, 5, host=host, aggregate_order="arrival").versions
    assert [version.finished for version in versions[:-1]] == pytest.approx(ends[:-1], rel=1e-9)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_all_workers_contribute_to_every_version_of_a_job_with_jitter(topology: str) -> None:
    among = Disturbances(Spread(0.3, seed=5))
    found = job(costs(*[{"up": 9000, "down": 5000, "decode": 0.003}] * 5), topology, Scenario(3, RATE, 0.001, 2), 12, among)
    assert [sorted(version.contributors) for version in found.versions] == [[1, 2, 3]] * 12
    assert all(len(group) == 3 for version in found.versions for group in version.added)
    assert sum(found.sent) == sum(found.received) == sum(version.up + version.down for version in found.versions)
    assert found.dropped == 0


@pytest.mark.parametrize("topology", ["mesh", "mesh:master=auto"])
def test_a_mesh_ends_when_a_worker_is_lost(topology: str) -> None:
    found = job(
        costs({}, {}, {}, {}), topology, Scenario(3, RATE, 0.0, 8), 9, Disturbances(deaths=[Death(2, 0.7)], detection=0.5)
    )
    assert isinstance(found.failure, TransportError) and found.failure.exit_code == 3
    assert "the run cannot go on without rank 2" in str(found.failure)
    assert (len(found.versions), found.stop_reason, found.seconds) == (2, "lost", pytest.approx(1.2))
    assert [event["event"] for event in found.events] == ["lost"]


def test_servers_go_on_without_a_lost_worker() -> None:
    """Check that the job continues if rank 2 dies in its third step before it has sent any part of it: the round waits until
    the master knows of the death.
    """
    among = Disturbances(deaths=[Death(2, 0.65)], detection=0.5)
    found = job(costs({"ready": 0.1}, {"ready": 0.2}, {}), "sharded:servers=2", Scenario(4, RATE, 0.0, 8), 8, among)
    assert found.failure is None and len(found.versions) == 8
    assert [sorted(version.contributors) for version in found.versions] == [[1, 2, 3, 4]] * 2 + [[1, 3, 4]] * 6
    assert found.step_times == pytest.approx([0.3, 0.3, 0.55] + [0.3] * 5)


def test_a_silent_worker_returns_with_the_whole_weights_from_all_servers() -> None:
    """Check a worker that is silent from 1 to 5.9 s: it is suspended a second after the round that opened at .9 s. The
    weights are 16 bytes per group.
    """
    among = Disturbances(standstills=[Standstill(2, 1.0, 5.9)])
    groups, rule = costs({}, {}, {}, {}), {"deadline": 1.0, "pause_deadline": 1.0}
    found = job(groups, "sharded:servers=2", Scenario(3, None, 0.0, 8), 20, among, **rule)
    assert [(event["event"], event["rank"]) for event in found.events] == [("suspended", 2), ("returned", 2)]
    assert found.events[0]["time"] == pytest.approx(1.9)
    assert 5.9 <= found.events[1]["time"] <= 5.9 + 0.6
    assert sorted(found.versions[-1].contributors) == [1, 2, 3]
    assert found.received == [0, 0, 4 * 16, 0, 0] and found.sent == [2 * 16, 0, 0, 0, 2 * 16]


def test_a_worker_that_stands_still_holds_up_its_part_of_a_mesh() -> None:
    """Check two groups with .1 s of decoding for each of two gradients, if rank 2 computes and decodes nothing from .35 to
    1.35 s.
    """
    among = Disturbances(standstills=[Standstill(2, 0.35, 1.35)])
    found = job(costs({"decode": 0.1}, {"decode": 0.1}), "mesh", Scenario(2, None, 0.0, 8), 2, among)
    assert found.step_times == pytest.approx([1.5, 0.5])


def test_a_worker_that_stands_still_holds_up_a_gather() -> None:
    """Check two workers, each of which decodes two gradients of .1 s, if rank 2 computes and decodes nothing from .35 to
    1.35 s.

    Rank 1 has the first version at .5 s, so that rank 2 decodes rank 1's next gradient during its own passes.
    """
    among = Disturbances(standstills=[Standstill(2, 0.35, 1.35)])
    found = job(costs({"decode": 0.1}), "gather", Scenario(2, None, 0.0, 8), 3, among)
    assert found.step_times == pytest.approx([1.5, 0.4, 0.5])


@pytest.mark.parametrize(("begin", "end", "seconds"), [(0.35, 0.36, 0.45), (0.37, 1.37, 1.42), (0.42, 1.42, 1.4)])
def test_a_worker_that_stands_still_passes_no_weights_on(begin: float, end: float, seconds: float) -> None:
    """Check a rank 1 that is stopped for a while. Ranks 1 and 2 get the weights of the first version at .4 s, over the
    master's link together; rank 1 passes them on to rank 3 in .05 s.

    If rank 1 does so before it is stopped, its own passes are the last to end.
    """
    among = Disturbances(standstills=[Standstill(1, begin, end)])
    found = job(costs({"down": 50_000}), "star:down=tree", Scenario(3, RATE, 0.0, 8), 2, among)
    assert found.step_times == pytest.approx([0.3, seconds])


def test_a_silent_worker_that_passes_no_weights_on_is_suspended_and_returns() -> None:
    """Check rank 3, which passes no weights on in the tree, so that the job continues as in a star."""
    among = Disturbances(standstills=[Standstill(3, 1.0, 5.9)])
    found = job(costs({}), "star:down=tree", Scenario(3, None, 0.0, 8), 20, among, deadline=1.0, pause_deadline=1.0)
    assert [(event["event"], event["rank"]) for event in found.events] == [("suspended", 3), ("returned", 3)]
    assert sorted(found.versions[-1].contributors) == [1, 2, 3]


GATHER = Scenario(3, RATE, 0.0, 64)


def test_a_gather_goes_on_without_a_lost_worker() -> None:
    """Check that the others wait until the master knows of the death of rank 2, which dies during its passes of the second
    step. Then they exchange one gradient each, of .1 s.
    """
    among = Disturbances(deaths=[Death(2, 0.6)], detection=0.5)
    found = job(costs({"up": 100_000}), "gather", GATHER, 4, among)
    assert [sorted(version.contributors) for version in found.versions] == [[1, 2, 3], [1, 3], [1, 3], [1, 3]]
    assert found.step_times == pytest.approx([0.5, 0.6, 0.4, 0.4])
    assert [(event["event"], event["rank"]) for event in found.events] == [("lost", 2)]


@pytest.mark.parametrize("held", [True, False])
def test_a_gradient_of_a_lost_worker_counts_at_all_shards_or_at_none(held: bool) -> None:
    """Check a gradient whose sender dies before any other worker has it, or when only one of them has it.

    At .3 s every worker begins to send its gradient to both others, which takes .1 s each on a free link. Of rank 2's
    connections, the one to rank 3 has the greater weight, so that the frame to rank 3 arrives at .5 s and the frame to rank
    1 at .5105 s. If rank 2 dies between these times, the gradient goes from rank 3 to the master and from there to rank 1,
    once the death is detected. If rank 2 dies before, no other rank has the gradient.
    """
    scenario, death = Scenario(3, RATE, 0.0, 64, uneven=0.4), 0.505 if held else 0.45
    found = job(costs({"up": 100_000}), "gather", scenario, 3, Disturbances(deaths=[Death(2, death)], detection=0.5))
    assert [sorted(version.contributors) for version in found.versions] == [[1, 2, 3] if held else [1, 3], [1, 3], [1, 3]]
    assert found.step_times == pytest.approx([death + 0.5 + (0.2 if held else 0.0), 0.4, 0.4])
    assert (found.received[0], found.sent[0]) == ((100_000, 100_000) if held else (0, 0))
    assert sum(found.sent) == sum(version.up + version.down for version in found.versions)


def test_a_silent_worker_of_a_gather_is_lost() -> None:
    """Check that a silent worker of a gather cannot come back: its weights would lack updates that no rank keeps."""
    among = Disturbances(standstills=[Standstill(2, 1.0, 5.9)])
    found = job(costs({}), "gather", Scenario(3, None, 0.0, 8), 30, among, deadline=1.0, pause_deadline=1.0)
    assert [(event["event"], event["rank"]) for event in found.events] == [("lost", 2)]
    assert "it cannot come back" in found.events[0]["reason"]
    assert sorted(found.versions[-1].contributors) == [1, 3] and len(found.versions) == 30


def test_a_worker_that_stops_for_a_moment_when_the_deadline_passes_is_not_lost() -> None:
    """Rank 2 holds up the round until the deadline at 1.9 s. Rank 3, which has sent its gradient, only stops from 1.85 to 1.95 s
    and then answers.
    """
    among = Disturbances(standstills=[Standstill(2, 1.0, 5.9), Standstill(3, 1.85, 1.95)])
    found = job(costs({}), "gather", Scenario(4, None, 0.0, 8), 30, among, deadline=1.0, pause_deadline=1.0)
    assert [(event["event"], event["rank"]) for event in found.events] == [("lost", 2)]


@pytest.mark.parametrize("uneven", [0.4, 0.0])
def test_a_gradient_that_has_reached_a_stopped_worker_counts(uneven: float) -> None:
    """Rank 3 stops at .4 s, and the frame of rank 2 reaches it at .5 s. Rank 2 dies after that, and the master knows before rank
    3 goes on. If the connections are even, rank 1 has the frame too, so that nothing has to be sent.
    """
    among = Disturbances(standstills=[Standstill(3, 0.4, 1.3)], deaths=[Death(2, 0.505)], detection=0.2)
    scenario = Scenario(3, RATE, 0.0, 64, uneven=uneven)
    found = job(costs({"up": 100_000}, bookkeeping=1e-4), "gather", scenario, 3, among)
    assert [sorted(version.contributors) for version in found.versions] == [[1, 2, 3], [1, 3], [1, 3]]
    assert found.received[0] == (100_000 if uneven else 0)


@pytest.mark.parametrize(
    ("disturbances", "lost"),
    [
        (Disturbances(standstills=[Standstill(2, 1.15, 9.5)]), 1.86),
        (Disturbances(standstills=[Standstill(2, 3.0, 4.0)], deaths=[Death(2, 1.15)], detection=0.3), 1.45),
    ],
)
def test_a_lost_worker_does_no_more_work_when_a_stop_ends(disturbances: Disturbances, lost: float) -> None:
    groups = costs({"decode": 0.1, "update": 0.02}, {"decode": 0.05, "update": 0.02})
    config = load({"topology": "gather", "deadline": 1.0, "pause_deadline": 1.0}, {})
    scenario = Scenario(3, None, 0.0, 8)
    found = simulate_job(profile(), routed(groups, "gather", 3), scenario, config, 20, disturbances, timeline=True)
    assert [(event["event"], event["rank"]) for event in found.events] == [("lost", 2)]
    assert found.events[0]["time"] == pytest.approx(lost, abs=0.02)
    spans = spans_of({**event, "tid": 0} for event in found.spans)
    ends = [span.stop for span in spans if span.rank == 2]
    assert 0 < max(ends) <= 1.15 + 1e-9
    found_paths = paths(spans)
    assert [path.step for path in found_paths] == list(range(2, 21))
    assert found_paths[-1].stop - found_paths[0].start == pytest.approx(found.seconds - found.versions[0].finished)


def test_a_silent_worker_that_dies_later_is_lost_once() -> None:
    among = Disturbances(standstills=[Standstill(2, 1.0, 5.9)], deaths=[Death(2, 3.0)])
    found = job(costs({}), "gather", Scenario(3, None, 0.0, 8), 30, among, deadline=1.0, pause_deadline=1.0)
    assert [(event["event"], event["rank"]) for event in found.events] == [("lost", 2)]


def test_a_gather_ends_with_its_last_worker() -> None:
    among = Disturbances(deaths=[Death(1, 0.4), Death(2, 1.9)], detection=0.1)
    found = job(costs({}), "gather", Scenario(2, None, 0.0, 8), 9, among)
    assert isinstance(found.failure, TransportError) and found.failure.exit_code == 3
    assert "the run cannot go on without rank 2" in str(found.failure)
    assert found.seconds == pytest.approx(2.0)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("topology", ["gather", "star:down=tree"])
def test_a_job_goes_on_when_two_of_five_workers_die_at_any_time(topology: str, seed: int) -> None:
    chance = random.Random(f"{topology} {seed}")
    deaths = [Death(rank, chance.uniform(0, 3)) for rank in chance.sample(range(1, 6), 2)]
    if seed % 2:  # both within one flush
        deaths[1] = Death(deaths[1].rank, deaths[0].time + chance.uniform(0, 0.2))
    among = Disturbances(Spread(0.3, seed=seed + 1), deaths=deaths, detection=chance.choice((0.0, 0.05, 0.3)))
    sizes = [
        {"ready": 0.1 * n, "up": chance.randint(0, 40_000), "down": chance.randint(0, 20_000), "decode": 0.002} for n in (1, 2)
    ]
    scenario = Scenario(5, RATE, chance.choice((0.0, 0.01)), 2)
    found = job(costs(*sizes), topology, scenario, 25, among)
    assert len(found.versions) == 25 and found.failure is None
    assert [event["rank"] for event in found.events if event["event"] == "lost"] == [
        death.rank for death in sorted(deaths, key=lambda death: death.time)
    ]
    survivors = set(range(1, 6)) - {death.rank for death in deaths}
    assert all(survivors <= version.contributors for version in found.versions)
    assert found.versions[-1].contributors == survivors
    for group in (0, 1):  # a worker that is lost never comes back
        ranks = [{gradient.rank for gradient in version.added[group]} for version in found.versions]
        assert all(later <= earlier for earlier, later in itertools.pairwise(ranks))


def test_the_ranks_below_a_lost_one_get_the_weights_from_the_master() -> None:
    """Check a tree whose rank 1 dies before it has passed the first version on to rank 3. Ranks 1 and 2 get this version, of
    .05 s, at .4 s.

    The master knows of the death at .92 s, and sends rank 3 the whole weights, 16 bytes, on which rank 3 computes until 1.22
    s. The frames of the second version still take the way through rank 1, so rank 3 gets whole weights again, while rank 2
    gets its frame in .05 s. Later versions are sent to both ranks.
    """
    among = Disturbances(deaths=[Death(1, 0.42)], detection=0.5)
    found = job(costs({"down": 50_000}), "star:down=tree", Scenario(3, RATE, 0.0, 8), 4, among)
    assert found.step_times == pytest.approx([0.3, 0.92, 0.35, 0.4], abs=1e-4)
    assert [sorted(version.contributors) for version in found.versions] == [[1, 2, 3], [2, 3], [2, 3], [2, 3]]
    assert [(event["event"], event["rank"]) for event in found.events] == [("lost", 1), ("bypassed", 1)]
    assert found.received[3] == 2 * 16 + 3 * 50_000  # with the frame that rank 1 did not finish, and the last version


def test_a_silent_worker_that_passes_weights_on_is_suspended_and_returns() -> None:
    among = Disturbances(standstills=[Standstill(1, 1.0, 5.9)])
    found = job(costs({}), "star:down=tree", Scenario(3, None, 0.0, 8), 30, among, deadline=1.0, pause_deadline=1.0)
    events = [(event["event"], event["rank"]) for event in found.events]
    assert events == [("suspended", 1), ("bypassed", 1), ("returned", 1)]
    assert sorted(found.versions[-1].contributors) == [1, 2, 3]


@pytest.mark.parametrize(
    ("topology", "rule", "said"),
    [
        ("mesh", {"consistency": "asp"}, "--consistency would close the parts"),
        ("sharded:servers=2", {"consistency": "kofn", "num_aggregate": 2}, "--consistency would close the parts"),
        ("gather", {"aggregate_order": "arrival"}, "--aggregate-order arrival would add in another order"),
        ("star:down=tree", {"consistency": "ssp", "staleness": 1}, "--consistency other than bsp"),
    ],
)
def test_settings_that_train_refuses_under_a_topology_are_refused(topology: str, rule: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        groups_of(profile(coded=costs({})), "coded", load({"topology": topology, **rule}, {}), 3)
