"""Modelled steps of the star and of DDP's ring, against formulas for cases that have one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from psnode.jobs.planning.ddp_step import BUCKET, FIRST_BUCKET, HOOKS, buckets, ddp_bytes, ddp_step, sums_of
from psnode.jobs.planning.job_step import job_step, step_spans, step_without_links
from psnode.jobs.planning.profile import GroupCosts, HostCosts, Profile, SchemeCosts, TensorTimes
from psnode.jobs.planning.scenario import GOODPUT, Scenario
from psnode.plans.prediction import SPANS

FREE = HostCosts(0.0, 0.0, 0.0, 0.0, 2, 1.0)
NOTHING = GroupCosts(0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
RATE = 8e6 / GOODPUT  # a million bytes of payload per second


def profile(tensors: list[TensorTimes] | None = None, *, host: HostCosts = FREE, optimizer: float = 0.0) -> Profile:
    found = tensors or [TensorTimes((1000, 1000), 0.2, 0.0)]
    return Profile("model", 1, 0.1, 0.2, optimizer, tuple(found), host, {}, dict.fromkeys(HOOKS, 0.003))


def scheme(*groups: dict[str, Any], bookkeeping: float = 0.0, extra: float = 0.0) -> SchemeCosts:
    return SchemeCosts(tuple(GroupCosts(**{**NOTHING.__dict__, **group}) for group in groups), bookkeeping, extra, True)


@pytest.mark.parametrize(("shared", "seconds"), [(True, 3 * 0.3 / 2 / 0.5), (False, 0.3)])
def test_shared_cores_that_switch_between_workers_are_slower(shared: bool, seconds: float) -> None:
    """Check three workers with passes of .3 s and no other work: on two shared cores, at half of their rate."""
    found = job_step(profile(host=replace(FREE, turns=0.5)), scheme(), Scenario(3, None, 0.0, 2, shared=shared))
    assert found.seconds == pytest.approx(seconds)
    assert found.cores == pytest.approx(1.0 if shared else 0.5)


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_a_single_group_passes_the_master_s_link_once_for_each_worker_each_way(workers: int) -> None:
    """Check P workers in a step in which nothing overlaps: passes, P frames in, P frames out, and half a round trip in each
    direction.
    """
    costs = scheme({"up": 100_000, "down": 50_000, "ready": 0.2})
    found = job_step(profile(), costs, Scenario(workers, RATE, 0.004, 4))
    assert found.seconds == pytest.approx(0.3 + workers * 0.15 + 0.004)
    assert found.spent["link"] == pytest.approx(workers * 0.15)
    assert found.binds == ("link" if workers > 2 else "passes")


@pytest.mark.parametrize("workers", [1, 2])
def test_the_spans_of_a_step_of_one_group_follow_one_another(workers: int) -> None:
    """Check the spans for P workers, from version to version: P frames out, weights loaded, passes, coding, P frames in, P
    times decoding, update.

    A frame has arrived half a round trip after its last byte; the frames of all workers share the link.
    """
    costs = scheme({"up": 100_000, "down": 50_000, "ready": 0.2, "encode": 0.01, "apply": 0.02, "decode": 0.03, "update": 0.05})
    scenario = Scenario(workers, RATE, 0.004, 4)
    lengths = {
        "out": workers * 0.05 + 0.002, "apply": 0.02, "passes": 0.3, "encode": 0.01, "in": workers * 0.1 + 0.002,
        "decode": workers * 0.03, "update": 0.05,
    }  # fmt: skip
    now, expected = 0.0, {}
    for kind, length in lengths.items():
        expected[kind] = (-1 if kind == "passes" else 0, pytest.approx(now, abs=1e-6), pytest.approx(now + length, abs=1e-6))
        now += length
    found = step_spans(profile(), costs, scenario)
    assert {span.kind: span[1:] for span in found} == expected
    assert len(found) == len(SPANS) == len(expected)
    assert now == pytest.approx(job_step(profile(), costs, scenario).seconds)


def test_the_spans_are_those_of_the_worker_whose_gradient_comes_last() -> None:
    """Check two connections that share the link by 1 to 1.4: the frame of the slower one ends last, when all 200 kB have
    passed.
    """
    costs = scheme({"up": 100_000, "ready": 0.2})
    found = {span.kind: span for span in step_spans(profile(), costs, Scenario(2, RATE, 0.0, 4, uneven=0.4))}
    assert found["in"].end - found["in"].begin == pytest.approx(0.2, abs=1e-6)


@pytest.mark.parametrize(("nbytes", "seconds"), [(100_000, 0.3), (200_000, 0.4)])
def test_in_the_long_run_a_burst_carries_nothing(nbytes: int, seconds: float) -> None:
    """Check passes of .3 s while the master's link carries two gradients of .1 or .2 s, and a burst longer than all steps."""
    found = job_step(profile(), scheme({"up": nbytes, "ready": 0.2}), Scenario(2, RATE, 0.0, 4, burst=1e9))
    assert found.seconds == pytest.approx(seconds, abs=1e-6)
    assert found.spent["link"] == pytest.approx(seconds - 0.3, abs=1e-6)


def test_cores_are_less_used_in_a_step_that_a_link_makes_longer() -> None:
    """Check one shared core with passes of .6 s together, while the master's link carries two gradients of .5 s each."""
    found = job_step(profile(), scheme({"up": 500_000, "ready": 0.2}), Scenario(2, RATE, 0.0, 1, shared=True, burst=1e9))
    assert found.seconds == pytest.approx(1.0, abs=1e-6)
    assert found.cores == pytest.approx(0.6, abs=1e-6)
    assert found.binds != "cores"


def test_a_scheme_without_groups_has_no_spans() -> None:
    assert step_spans(profile(), scheme(), Scenario(2, RATE, 0.0, 4)) == ()


def test_what_arrives_before_the_backward_pass_ends_costs_nothing() -> None:
    """Check an early group, which travels during the passes: up from .15 to .25 s, down until .35 s. The late group follows,
    and is used at .36 s.
    """
    early = {"up": 50_000, "down": 50_000, "ready": 0.05, "needed": 0.09}
    found = job_step(profile(), scheme(early, {"ready": 0.2, "needed": 0.06}), Scenario(2, RATE, 0.0, 4))
    assert found.seconds == pytest.approx(0.3)


@pytest.mark.parametrize(("mpi", "sent", "taken"), [(0.0, 2e-7, 3e-7), (1e-6, 1e-6, 1e-6)])
def test_frames_through_mpi_take_the_threads_of_both_ends(mpi: float, sent: float, taken: float) -> None:
    """Check three workers. The first begins when its weights have arrived, and the others begin before the master has taken
    the first one's frame.

    The master's thread takes the three frames one after another, while the workers' threads send.
    """
    host = HostCosts(2e-7, 3e-7, 0.0, 0.0, 4, 1.0, mpi)
    costs = scheme({"up": 100_000, "down": 50_000, "ready": 0.2})
    found = job_step(profile(host=host), costs, Scenario(3, None, 0.0, 4))
    assert found.seconds == pytest.approx(50_000 * max(sent, taken) + 0.3 + 3 * 100_000 * taken)


def test_one_core_for_all_ranks_does_all_their_work_one_after_another() -> None:
    costs = scheme({"encode": 0.01, "apply": 0.02, "decode": 0.03, "update": 0.05, "ready": 0.2}, bookkeeping=0.001, extra=0.004)
    found = job_step(profile(), costs, Scenario(3, None, 0.0, 1, shared=True))
    assert found.seconds == pytest.approx(3 * (0.3 + 0.01 + 0.02 + 0.03 + 2 * 0.001 + 0.004) + 0.05)
    assert found.binds == "cores"


@pytest.mark.parametrize(("cores", "shared", "work"), [(1, True, 3 * 8 * 0.002), (64, True, 4 * 0.002), (64, False, 4 * 0.002)])
def test_messages_occupy_cores(cores: int, shared: bool, work: float) -> None:
    """Check three workers whose gradients and weights have no bytes. Every worker sends a gradient and a report, and gets
    weights and the message that the version is complete. A message is work of .002 s at each of its two ends.

    One core does all of this one after another. On many cores, the last worker gets its weights as the third one, and the master
    takes its gradient when it has taken the others. Reports and messages without values do not delay the step.
    """
    host = replace(FREE, message=0.002, cores=cores)
    found = job_step(profile(host=host), scheme({"ready": 0.2}), Scenario(3, None, 0.0, cores, shared=shared))
    assert found.seconds == pytest.approx(3 * 0.3 + work if cores == 1 else 0.3 + work)


def test_a_report_occupies_the_master_like_a_gradient() -> None:
    """Check one core, on which the master handles a gradient and a report of each of three workers."""
    found = job_step(profile(), scheme({"ready": 0.2}, bookkeeping=0.01), Scenario(3, None, 0.0, 1, shared=True))
    assert found.seconds == pytest.approx(3 * (0.3 + 2 * 0.01))


def test_hosts_of_their_own_compute_side_by_side() -> None:
    costs = scheme({"encode": 0.01, "apply": 0.02, "decode": 0.03, "update": 0.05, "ready": 0.2})
    found = job_step(profile(), costs, Scenario(3, None, 0.0, 2))
    assert found.seconds == pytest.approx(0.3 + 0.01 + 0.02 + 3 * 0.03 + 0.05)


def test_lanes_decode_groups_side_by_side() -> None:
    """Check two groups that are ready together: with three cores the master decodes in two lanes, with two cores in one."""
    groups = [{"decode": 0.05, "ready": 0.2} for _ in range(2)]
    for cores, seconds in ((3, 0.4), (2, 0.5)):
        found = job_step(profile(), scheme(*groups), Scenario(2, None, 0.0, cores))
        assert found.seconds == pytest.approx(seconds), cores


def test_the_worker_alone_codes_beside_its_backward_pass() -> None:
    """Check two codings of .05 s: the one from .1 s on fits into the backward pass, and the one from .2 s on does not."""
    groups = [{"encode": 0.05, "ready": 0.1, "apply": 0.01}, {"encode": 0.05, "ready": 0.2, "apply": 0.01}]
    assert step_without_links(profile(), scheme(*groups)) == pytest.approx(0.3 + 0.02 + 0.05)


def test_workers_whose_connections_are_faster_are_ahead_and_use_the_link_meanwhile() -> None:
    """Check two connections that share the link by 1.2 to .8: the first worker has its weights earlier, and sends while the
    other still receives.
    """
    costs = scheme({"up": 100_000, "down": 100_000, "ready": 0.2})
    even, uneven = (job_step(profile(), costs, Scenario(2, RATE, 0.0, 4, uneven=part)).seconds for part in (0.0, 0.2))
    assert even == pytest.approx(0.3 + 0.4)
    assert 0.3 + 0.3 < uneven < even


@pytest.mark.parametrize("workers", [1, 2, 4, 7, 3000])
@pytest.mark.parametrize(("hook", "nbytes"), [("fp32", [4_000_000]), ("fp16", [2_000_000]), ("powersgd:rank=2", [8000, 8000])])
def test_a_step_of_ddp_follows_the_formula_of_the_all_reduce(workers: int, hook: str, nbytes: list[int]) -> None:
    """Check the time of one bucket, or of PowerSGD's two factors of a 1000 x 1000 matrix, which follow one another, and
    three milliseconds of DDP itself.
    """
    found = ddp_step(profile(optimizer=0.01), hook, Scenario(workers, RATE, 0.002, 4))
    turns = 2 * (workers - 1)
    seconds = sum(turns / workers * each / 1e6 + turns * 0.001 for each in nbytes)
    assert found.seconds == pytest.approx(0.313 + seconds)
    assert ddp_bytes(4_000_000, workers) == pytest.approx(turns / workers * 4_000_000)


@pytest.mark.parametrize("workers", [2, 5])
def test_the_ring_takes_the_measured_time_for_each_turn_and_byte(workers: int) -> None:
    """Check ranks on hosts of their own, and all ranks on one core, whose work is done one after another."""
    costs = {"send": 1.0, "receive": 1.0, "add": 1.0}  # do not count
    host = replace(FREE, **costs, ring_turn=0.001, wake=0.003, ring_byte=2e-9)
    turns = 2 * (workers - 1)
    carried = turns / workers * 4_000_000 * 2e-9
    for cores, shared, seconds in ((4, False, 0.001), (9, True, 0.001), (workers, True, 0.004)):
        found = ddp_step(profile(host=host), "fp32", Scenario(workers, None, 0.0, cores, shared=shared))
        assert found.seconds == pytest.approx(0.303 + turns * seconds + carried), (cores, shared)
    together = ddp_step(profile(host=host), "fp32", Scenario(workers, None, 0.0, 1, shared=True))
    assert together.seconds == pytest.approx(workers * (0.303 + turns * 0.001 + carried) + turns * 0.003)


def test_messages_wait_for_a_core_where_all_cores_are_at_work() -> None:
    """Check a step with a gradient and weights of three workers on shared cores, and on hosts of their own."""
    host, costs = replace(FREE, wake=0.01), scheme({"ready": 0.2})
    for cores, shared, seconds in ((3, True, 0.3 + 2 * 0.01), (4, True, 0.3), (2, False, 0.3)):
        found = job_step(profile(host=host), costs, Scenario(3, None, 0.0, cores, shared=shared))
        assert found.seconds == pytest.approx(seconds), (cores, shared)


@pytest.mark.parametrize("workers", [1, 2, 4, 30])
def test_passes_take_as_long_as_those_of_the_slowest_worker(workers: int) -> None:
    """Compare the duration with the median of the maximum of random draws, and the steps with those of other passes."""
    draws = np.random.default_rng(3).gamma(9.0, 1.0, (20_000, workers)).max(axis=1)
    host = replace(FREE, durations=tuple(np.random.default_rng(4).gamma(9.0, 1.0, 20_000)))
    slowest = host.slowest(workers)
    assert slowest == pytest.approx(np.median(draws) / np.median(host.durations), rel=0.03)
    costs, own = scheme({"ready": 0.2, "encode": 0.01}, extra=0.02), profile(host=host, optimizer=0.02)
    found = job_step(own, costs, Scenario(workers, None, 0.0, 64))
    assert found.seconds == pytest.approx(0.3 * slowest + 0.03)
    assert ddp_step(own, "fp32", Scenario(workers, None, 0.0, 64)).seconds == pytest.approx(0.3 * slowest + 0.023)
    spans = [span for span in step_spans(own, costs, Scenario(workers, None, 0.0, 64)) if span.kind == "passes"]
    assert sum(span.end - span.begin for span in spans) == pytest.approx(0.3 * slowest + 0.02, abs=1e-5)


def test_the_wait_for_the_slowest_worker_needs_no_core() -> None:
    """Check three workers that share one core: their work follows one another, and the last one's wait comes on top."""
    host = replace(FREE, durations=(1.0, 1.0, 1.0, 2.0))
    slowest = host.slowest(3)
    assert slowest == pytest.approx(1.25)  # the quantile of 3 / 4, at a quarter of the way from the third duration to the fourth
    found = job_step(profile(host=host), scheme({"ready": 0.2}), Scenario(3, None, 0.0, 1, shared=True))
    assert 3 * 0.3 < found.seconds <= 3 * 0.3 + 0.3 * (slowest - 1) + 1e-9


def test_a_few_durations_show_no_rare_ones() -> None:
    """Check that the most extreme quantile of five durations is that of 4 / 5, for any number of workers."""
    host = replace(FREE, durations=(1.0, 1.0, 1.0, 1.0, 11.0))
    assert host.slowest(1000) == host.slowest(4) == pytest.approx(np.quantile(host.durations, 0.8))


def test_without_measured_durations_all_workers_are_alike() -> None:
    assert FREE.slowest(100) == 1.0


def test_powersgd_adds_up_factors_of_matrices_and_everything_else_whole() -> None:
    """Check the bytes of PowerSGD, as torch decides: a 64 x 25 matrix gives (64 + 25) * 2 values; an 8 x 8 matrix is whole,
    since its factors would have over half of its values.
    """
    found = sums_of([TensorTimes(shape, 0.1, 0.0) for shape in ((64, 5, 5), (8, 8), (64,), (1,))], "powersgd:rank=2")
    assert [each.nbytes for each in found] == [4 * (64 + 64 + 1), 4 * 64 * 2, 4 * 25 * 2]


@pytest.mark.parametrize("seed", range(5))
def test_buckets_are_torch_s(seed: int) -> None:
    """Compare buckets with torch's, which are filled with the tensors in the order of their gradients, once torch has seen
    that order.
    """
    assign: Any = vars(torch.distributed)["_compute_bucket_assignment_by_size"]
    generator = torch.Generator().manual_seed(seed)
    sizes = (10 ** (7.2 * torch.rand(40, generator=generator))).long().tolist()
    found = buckets([TensorTimes((size,), 0.01 * place, 0.0) for place, size in enumerate(sizes)])
    groups, _ = assign([torch.empty(size, device="meta") for size in sizes], [FIRST_BUCKET, BUCKET])
    assert [bucket.nbytes for bucket in found] == [4 * sum(sizes[index] for index in group) for group in groups]
    assert [bucket.ready for bucket in found] == pytest.approx([0.01 * max(group) for group in groups])
