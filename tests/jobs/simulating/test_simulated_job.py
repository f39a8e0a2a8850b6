"""Simulated jobs against formulas for cases that have one, the planner's other engine, and the rules applied by brute force."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from psnode.config.load import load
from psnode.errors import ConfigurationError
from psnode.jobs.planning.job_step import job_step
from psnode.jobs.planning.profile import GroupCosts, HostCosts, Profile, SchemeCosts, TensorTimes
from psnode.jobs.planning.scenario import GOODPUT, Scenario
from psnode.jobs.simulating.disturbances import Death, Spread, Standstill
from psnode.jobs.simulating.event_loop import EventLoop
from psnode.jobs.simulating.simulated_job import Disturbances, SimulatedJob, simulate_job
from psnode.jobs.simulating.work_lanes import WorkLanes

FREE = HostCosts(0.0, 0.0, 0.0, 0.0, 64, 1.0)
NOTHING = GroupCosts(0, 0, 0.0, 0.0, 0.0, 0.0, 0.2, 0.0)
RATE = 8e6 / GOODPUT  # a million bytes of payload per second
CASES = 50  # per rule: 200 in all


def profile(host: HostCosts = FREE) -> Profile:
    return Profile("model", 1, 0.1, 0.2, 0.0, (TensorTimes((1000, 1000), 0.2, 0.0),), host, {}, {})


def scheme(*groups: dict[str, Any], bookkeeping: float = 0.0, extra: float = 0.0) -> SchemeCosts:
    return SchemeCosts(tuple(replace(NOTHING, **group) for group in groups), bookkeeping, extra, True)


def job(
    costs: SchemeCosts, scenario: Scenario, steps: int, host: HostCosts = FREE, *, among: Disturbances | None = None, **rule: Any
) -> SimulatedJob:
    return simulate_job(profile(host), costs, scenario, load(rule, {}), steps, among or Disturbances())


def contributors(found: SimulatedJob) -> list[list[int]]:
    return [sorted(version.contributors) for version in found.versions]


@pytest.mark.parametrize("workers", range(1, 8))
@pytest.mark.parametrize(("bookkeeping", "decode"), [(0.001, 0.004), (0.004, 0.001)])
def test_a_step_with_one_group_follows_its_formula(workers: int, bookkeeping: float, decode: float) -> None:
    """Check a step in which all frames arrive together: the main thread or the lane, whichever is slower, handles them one
    after another.
    """
    group = {"up": 100_000, "down": 50_000, "encode": 0.002, "apply": 0.003, "decode": decode, "update": 0.005}
    found = job(scheme(group, bookkeeping=bookkeeping), Scenario(workers, RATE, 0.006, 64), 4)
    handled = max(workers * bookkeeping + decode, bookkeeping + workers * decode)
    expected = 0.3 + 0.002 + 0.003 + workers * 0.15 + 0.006 + handled + 0.005
    assert found.step_times[1:] == pytest.approx([expected] * 3, rel=1e-12)
    assert found.step_times[0] == pytest.approx(expected - workers * 0.05 - 0.003 - 0.003, rel=1e-12)  # the weights are in place


@pytest.mark.parametrize("workers", range(1, 8))
def test_a_step_whose_messages_cost_the_master_s_thread_time_follows_its_formula(workers: int) -> None:
    """Check that the weights leave the master's thread one after another, and that the gradients arrive in this rhythm; the
    last worker's own message comes on top.
    """
    found = job(scheme({}), Scenario(workers, None, 0.0, 64), 4, HostCosts(0.0, 0.0, 0.02, 0.0, 64, 1.0))
    assert found.step_times[1:] == pytest.approx([0.3 + workers * 0.02 + 0.02] * 3, rel=1e-12)


def test_bytes_cost_the_threads_of_both_ends_time_while_the_link_carries_them() -> None:
    """Check the slowest part in each direction. Up, the link takes .1 s, the worker's thread .1 s and the master's .3 s;
    down, they take .05, .15 and .05 s.
    """
    found = job(scheme({"up": 100_000, "down": 50_000}), Scenario(1, RATE, 0.0, 8), 3, HostCosts(1e-6, 3e-6, 0.0, 0.0, 8, 1.0))
    assert found.step_times[1:] == pytest.approx([0.3 + 0.3 + 0.15] * 2)


@pytest.mark.parametrize(("cores", "seconds"), [(3, 0.4), (2, 0.5)])
def test_lanes_decode_groups_side_by_side(cores: int, seconds: float) -> None:
    """Check two groups that are ready together: with three cores the master decodes in two lanes, with two cores in one."""
    found = job(scheme({"decode": 0.05}, {"decode": 0.05}), Scenario(2, None, 0.0, cores), 3)
    assert found.step_times == pytest.approx([seconds] * 3)


def test_a_lane_does_the_work_of_later_groups_first_and_that_of_one_group_in_order() -> None:
    loop, told = EventLoop(), list[tuple[str, float]]()
    lanes = WorkLanes(loop, 1)
    for group, name in ((0, "first"), (0, "a"), (0, "b"), (2, "c"), (1, "d"), (2, "e")):
        lanes.submit(group, 1.0, lambda name: told.append((name, loop.now)), name)
    loop.run()
    assert told == [("first", 1.0), ("c", 2.0), ("e", 3.0), ("d", 4.0), ("a", 5.0), ("b", 6.0)]


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("uneven", [0.0, 0.4])
def test_synchronous_steps_are_those_of_the_planner(workers: int, groups: int, uneven: float) -> None:
    """Compare steps with the planner's, a different program, which runs a graph of activities with the same prices; all
    cores are free.

    The planner adds gradients as they arrive, and its main thread handles waiting frames in another order.
    """
    chance = np.random.default_rng((workers, groups))
    times = [sorted(chance.uniform(0, 0.2, groups)), sorted(chance.uniform(0, 0.1, groups), reverse=True)]
    costs = scheme(
        *(
            {
                "ready": ready, "needed": needed, "up": int(chance.integers(100_000)), "down": int(chance.integers(100_000)),
                **{name: float(chance.uniform(0, 0.01)) for name in ("encode", "apply", "decode", "update")},
            }
            for ready, needed in zip(*times, strict=True)
        ),
        bookkeeping=0.0 if uneven else 0.0003, extra=0.002,
    )  # fmt: skip
    scenario = Scenario(workers, 1e8, 0.004, 64, uneven=uneven)
    found = job(costs, scenario, 8, aggregate_order="arrival").step_times[-1]
    assert found == pytest.approx(job_step(profile(), costs, scenario).seconds, rel=1e-9)


def test_gradients_that_are_added_in_the_order_of_ranks_wait_for_the_slowest_connection() -> None:
    """Check that rank 1, whose connection is the slowest of three, delays the step: two more gradients of .01 s each are
    decoded after its own.
    """
    costs, scenario = scheme({"up": 100_000, "down": 100_000, "decode": 0.01}), Scenario(3, RATE, 0.0, 8, uneven=0.4)
    rank, arrival = (job(costs, scenario, 5, aggregate_order=order).step_times[-1] for order in ("rank", "arrival"))
    assert rank - arrival == pytest.approx(0.02)


@dataclass
class Brute:
    """A job with one group whose messages and coding cost nothing, in its simplest form.

    `pass_ends`: by rank, the function from the beginning of a step to its end, which is infinite if the worker dies meanwhile.
    `deaths`: by rank, the times at which the master knows. A worker that ends a step takes the newest version, or waits for one.
    """

    rule: str
    k: int
    bound: int
    pass_ends: dict[int, Any]
    deaths: dict[int, float]
    version: int = 0
    now: float = 0.0
    made: list[tuple[float, list[tuple[int, int]]]] = field(default_factory=list)
    dropped: int = 0

    def run(self, steps: int) -> None:
        self.ends = {rank: end(0.0) for rank, end in self.pass_ends.items()}  # infinite: nothing comes
        self.waits = set[int]()  # for a version
        self.based = dict.fromkeys(self.pass_ends, 0)
        self.least = dict.fromkeys(self.pass_ends, 0)  # versions on which the next gradients can be computed
        self.live = set(self.pass_ends)
        self.here: list[tuple[int, int]] = []
        self.late: list[tuple[int, int]] = []
        while self.version < steps and self.live:
            next_end = min(self.ends, key=lambda rank: self.ends[rank])
            gone = min(self.deaths, key=lambda rank: self.deaths[rank], default=0)
            if gone and self.deaths[gone] < self.ends[next_end]:
                self.now = self.deaths.pop(gone)
                self.live.discard(gone)
                self.close(steps)
                if not self.live and self.here:
                    self.make()
                continue
            self.now = self.ends[next_end]
            self.end_step(next_end, steps)

    def end_step(self, rank: int, steps: int) -> None:
        based, self.ends[rank] = self.based[rank], float("inf")
        if self.version > based:
            self.begin_step(rank)
        else:
            self.waits.add(rank)
        self.least[rank] = based + 1
        if self.rule in ("bsp", "kofn") and based != self.version:
            self.dropped += 1
        elif any(rank == other for other, _ in self.here):
            self.late.append((rank, based))
        else:
            self.here.append((rank, based))
        self.close(steps)

    def begin_step(self, rank: int) -> None:
        self.based[rank], self.ends[rank] = self.version, self.pass_ends[rank](self.now)

    def close(self, steps: int) -> None:
        while self.version < steps and self.is_over():
            self.make()

    def is_over(self) -> bool:
        awaited = self.live - {rank for rank, _ in self.here}
        enough = len(self.here) >= self.k or not awaited
        fresh = self.rule != "ssp" or all(self.version + 1 - self.least[rank] <= self.bound for rank in awaited)
        return bool(self.here) and enough and fresh

    def make(self) -> None:
        self.made.append((self.now, sorted(self.here)))
        self.here, self.late = self.late, []
        self.version += 1
        for rank in self.waits:
            self.begin_step(rank)
        self.waits.clear()


@pytest.mark.parametrize("rule", ["bsp", "kofn", "ssp", "asp"])
def test_who_contributes_to_which_version_is_what_the_rules_say(rule: str) -> None:
    seen = set()
    for seed in range(CASES):
        chance = random.Random(f"{rule} {seed}")
        workers, bound, steps = chance.randint(1, 6), chance.randint(0, 3), 25
        k = {"bsp": workers, "kofn": chance.randint(1, workers)}.get(rule, chance.choice((1, min(2, workers))))
        spread = Spread(chance.choice((0.05, 0.5)), seed=seed)
        kills = [
            Death(rank, chance.uniform(0, 5)) for rank in chance.sample(range(1, workers + 1), chance.randint(0, workers // 2))
        ]
        settings = {"consistency": rule, "num_aggregate": k} | ({"staleness": bound} if rule == "ssp" else {})
        among = Disturbances(spread, deaths=kills, detection=0.3)
        found = job(scheme({}), Scenario(workers, None, 0.0, 4), steps, among=among, **settings)

        def ends(rank: int, spread: Spread = spread, kills: list[Death] = kills) -> Any:
            factor, death = spread.factors(rank), min((kill.time for kill in kills if kill.rank == rank), default=float("inf"))

            def end(begin: float) -> float:
                time = begin + 0.3 * factor()
                return time if time <= death else float("inf")

            return end

        brute = Brute(rule, k, bound, {rank: ends(rank) for rank in range(1, workers + 1)}, {d.rank: d.time + 0.3 for d in kills})
        brute.run(steps)
        [*told] = [sorted((each.rank, each.based) for each in version.added[0]) for version in found.versions]
        assert told == [added for _, added in brute.made], seed
        assert [version.finished for version in found.versions] == pytest.approx([time for time, _ in brute.made])
        assert found.dropped == brute.dropped
        seen |= set(found.staleness)
        if rule == "ssp":
            assert max(found.staleness) <= bound
        if rule == "kofn" and not kills:
            assert {len(version.contributors) for version in found.versions} == {k}
    assert seen == {0} if rule in ("bsp", "kofn") else len(seen) > 2


@pytest.mark.parametrize("rule", [{"consistency": "kofn", "num_aggregate": 3}, {"consistency": "ssp", "staleness": 0}])
def test_rules_that_wait_for_all_are_bsp(rule: dict[str, Any]) -> None:
    costs, among = (
        scheme({"up": 9000, "down": 5000, "ready": 0.1}, {"up": 700, "decode": 0.01}),
        Disturbances(Spread(0.4, seed=5)),
    )
    found = [job(costs, Scenario(3, RATE, 0.001, 8), 12, among=among, **each) for each in ({}, rule)]
    assert contributors(found[0]) == contributors(found[1]) == [[1, 2, 3]] * 12
    assert found[0].step_times == found[1].step_times


@pytest.mark.parametrize("rule", [{}, {"consistency": "kofn", "num_aggregate": 3}, {"consistency": "asp"}])
def test_the_job_goes_on_without_the_dead(rule: dict[str, Any]) -> None:
    """Check that the job continues if rank 2 dies in its third step before it has sent any part of it: a synchronous round
    waits until the master knows of the death.
    """
    costs = scheme({"ready": 0.1}, {"ready": 0.2})
    found = job(costs, Scenario(4, RATE, 0.0, 8), 8, among=Disturbances(deaths=[Death(2, 0.65)], detection=0.5), **rule)
    assert len(found.versions) == 8 and found.stop_reason is None
    assert [event["event"] for event in found.events] == ["lost"] and found.events[0]["time"] == pytest.approx(1.15)
    if not rule:
        assert contributors(found) == [[1, 2, 3, 4]] * 2 + [[1, 3, 4]] * 6
        assert found.step_times == pytest.approx([0.3, 0.3, 0.55] + [0.3] * 5)


def test_a_frame_that_has_not_passed_the_link_when_its_sender_dies_is_lost() -> None:
    """Check that the rest of a dead worker's frame is lost. Two frames of .1 s share the link from .3 s on; at .4 s, when
    one sender dies, half of each has passed, and the other's rest takes .05 s.
    """
    costs = scheme({"up": 100_000})
    found = job(costs, Scenario(2, RATE, 0.0, 8), 1, among=Disturbances(deaths=[Death(1, 0.4)], detection=0.01))
    assert contributors(found) == [[2]] and found.seconds == pytest.approx(0.45)


@pytest.mark.parametrize(("least", "versions"), [(1, 3), (2, 2)])
def test_a_job_with_too_few_workers_ends_with_the_open_version_or_the_last_one(least: int, versions: int) -> None:
    """Check the number of versions if rank 1 dies in step 2, and rank 2 in step 4, of which it has sent nothing."""
    kills = [Death(1, 0.4), Death(2, 1.1)]
    found = job(scheme({}), Scenario(2, None, 0.0, 8), 9, among=Disturbances(deaths=kills), min_workers=least)
    assert (len(found.versions), found.stop_reason) == (versions, "quorum")


def test_a_worker_that_stands_still_holds_up_synchronous_rounds_and_no_others() -> None:
    """Check a worker that is stopped from .1 to 2.1 s: its first gradient, of .3 s, comes at 2.3 s. Under kofn, the other
    two workers make every round meanwhile.
    """
    among = Disturbances(standstills=[Standstill(3, 0.1, 2.1)])
    found = job(scheme({}), Scenario(3, None, 0.0, 8), 3, among=among)
    assert found.step_times == pytest.approx([2.3, 0.3, 0.3])
    found = job(scheme({}), Scenario(3, None, 0.0, 8), 10, among=among, consistency="kofn", num_aggregate=2)
    assert found.step_times == pytest.approx([0.3] * 10)
    assert contributors(found)[:8] == [[1, 2]] * 8
    assert found.dropped > 0


def test_a_worker_that_was_away_applies_all_versions_before_it_goes_on() -> None:
    """Check asp with passes of .3 s and .02 s to apply weights. The second worker is stopped for .91 s, until the first has
    made three versions.

    Its gradient, at 1.21 s, makes the fourth version. It applies four versions until 1.29 s; meanwhile the fifth has come,
    and its next gradient is based on that one. The first worker takes each step on the newest version that exists when its
    previous step ends.
    """
    among = Disturbances(standstills=[Standstill(2, 0.1, 1.01)])
    found = job(scheme({"apply": 0.02}), Scenario(2, None, 0.0, 8), 7, among=among, consistency="asp")
    assert [(each.rank, each.based) for version in found.versions for each in version.added[0]] == [
        (1, 0), (1, 1), (1, 2), (2, 0), (1, 3), (1, 4), (2, 5),
    ]  # fmt: skip
    assert [version.finished for version in found.versions] == pytest.approx([0.3, 0.62, 0.94, 1.21, 1.26, 1.58, 1.61])


def test_a_worker_that_is_silent_beyond_the_deadline_is_suspended_and_returns_with_whole_weights() -> None:
    """Check a deadline of 1 s that passes in the fourth round, which begins at .9 s. The worker answers again at 5.1 s, and
    returns at the next version.

    It then takes a step on whole weights of 4 MB, which cost nothing here.
    """
    among = Disturbances(standstills=[Standstill(2, 1.0, 4.9)])
    found = job(scheme({}), Scenario(3, None, 0.0, 8), 20, among=among, deadline=1.0, pause_deadline=1.0)
    assert [(event["event"], event["rank"]) for event in found.events] == [("suspended", 2), ("returned", 2)]
    suspended, returned = (event["time"] for event in found.events)
    assert suspended == pytest.approx(1.9)
    assert found.step_times[3] == pytest.approx(1.0)
    first = next(index for index, version in enumerate(found.versions) if version.finished >= returned)
    assert 5.1 <= returned <= 5.1 + 0.3
    everybody, others = [1, 2, 3], [1, 3]
    assert contributors(found) == [everybody] * 3 + [others] * (first - 2) + [everybody] * (19 - first)
    assert found.received[2] == 4_000_000


def test_flow_control_holds_a_worker_that_does_not_take_its_weights() -> None:
    """Check three workers that make versions of 40 MB in asp. At most two sets of weights, or 64 MiB if that is more, may be
    on their way to the third worker.

    This worker is stopped for ten steps. When it runs again it first has to answer, and gets the newest weights whole,
    instead of ten versions.
    """
    among = Disturbances(standstills=[Standstill(3, 0.1, 3.1)])
    costs = scheme({"down": 40_000_000})
    found = job(costs, Scenario(3, None, 0.0, 8), 30, among=among, consistency="asp", num_aggregate=2)
    assert found.received[3] < found.received[1] - 5 * 40_000_000
    assert 3 in set().union(*map(set, contributors(found)[-5:]))
    assert not found.events


class CountedSpread(Spread):
    """A spread that counts the factors that each worker draws."""

    def factors(self, rank: int) -> Callable[[], float]:
        draw, self.__dict__[str(rank)] = super().factors(rank), 0

        def counted() -> float:
            self.__dict__[str(rank)] += 1
            return draw()

        return counted

    def drawn(self, rank: int) -> int:
        return int(self.__dict__[str(rank)])


def test_a_step_that_is_given_up_leaves_its_factor_to_the_next_one() -> None:
    """Check that every worker has drawn a factor for each step whose backward pass has ended, and one more for the step at the
    end of the job. The third worker is stopped, and then gets the newest weights whole, in place of the weights it waits for.
    """
    spread = CountedSpread(0.1)
    among = Disturbances(spread, [Standstill(3, 0.1, 3.1)])
    costs, rule = scheme({"down": 40_000_000}), load({"consistency": "asp", "num_aggregate": 2}, {})
    found = simulate_job(profile(), costs, Scenario(3, None, 0.0, 8), rule, 30, among, timeline=True)
    ended = [sum(span["pid"] == rank and span["name"] == "forward_backward" for span in found.spans) for rank in (1, 2, 3)]
    assert [spread.drawn(rank) for rank in (1, 2, 3)] == [count + 1 for count in ended]


def test_bytes_are_the_same_at_both_ends_of_the_links() -> None:
    costs = scheme({"up": 700, "down": 40, "ready": 0.1}, {"up": 5, "down": 11})
    found = job(costs, Scenario(3, 1e9, 0.0002, 8), 6)
    assert found.sent == [6 * 3 * 51, *[6 * 705] * 3]
    assert found.received == [6 * 3 * 705, *[6 * 51] * 3]
    assert [(version.up, version.down) for version in found.versions] == [(3 * 705, 3 * 51)] * 6


def test_the_same_seed_gives_the_same_job_and_another_seed_another() -> None:
    found = [
        job(scheme({}), Scenario(4, None, 0.0, 8), 10, among=Disturbances(Spread(0.3, seed=seed)), consistency="asp").seconds
        for seed in (1, 1, 2)
    ]
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize("among", [Disturbances(deaths=[Death(3, 1.0)]), Disturbances(standstills=[Standstill(0, 1.0, 2.0)])])
def test_ranks_that_are_no_workers_are_refused(among: Disturbances) -> None:
    with pytest.raises(ConfigurationError, match="workers, which are 1 to 2"):
        job(scheme({}), Scenario(2, None, 0.0, 8), 1, among=among)
    with pytest.raises(ConfigurationError, match="--num-aggregate is 3"):
        job(scheme({}), Scenario(2, None, 0.0, 8), 1, consistency="kofn", num_aggregate=3)
