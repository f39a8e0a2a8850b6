"""Refitted profiles: known factors are recovered, and so are the figures and the links of simulated runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from psnode.config import Config
from psnode.errors import ConfigurationError
from psnode.jobs.planning.forecast import forecasts
from psnode.jobs.planning.profile import FixedCosts, GroupCosts, Profile, SchemeCosts, TensorTimes
from psnode.jobs.planning.refitting.finished_run import FinishedRun
from psnode.jobs.planning.refitting.profile_refit import ProfileRefit, refit, scheme_in
from psnode.jobs.planning.routing.routed_groups import routed
from psnode.jobs.planning.scenario import GOODPUT, Scenario
from psnode.jobs.simulating.simulated_job import groups_of, simulate_job
from psnode.jobs.simulating.simulated_records import write_records
from psnode.plans.groups import Group, Plan, Segment, Tensor
from psnode.records.directory import CONFIG
from psnode.records.machines import MACHINES
from tests.jobs.planning.refitting.run_cases import QSGD, make_run, plan_of_codecs, profile, record

SCENARIO = Scenario(3, None, 0.0, 16)


def of(path: Path, own: Profile | None = None, scenario: Scenario = SCENARIO, *, given: bool = True) -> ProfileRefit:
    return refit(own or profile(), FinishedRun.read(path), scenario, given=given)


def test_factors_known_beforehand_are_recovered(tmp_path: Path) -> None:
    """Check that a refit recovers the factors of a run: passes take 2 times as long as in the profile, coding 3, decoding 4
    and updates 5 times, and frames have 1.5 times the bytes up and half the bytes down.
    """
    before, found = profile(), of(make_run(tmp_path / "run"))
    after = found.profile
    assert found.name == "qsgd"
    assert (after.forward, after.backward) == pytest.approx((0.2, 0.4))
    assert [tensor.ready for tensor in after.tensors] == pytest.approx([0.2, 0.4])
    assert [tensor.needed for tensor in after.tensors] == pytest.approx([0.08, 0.0])
    own = after.schemes["qsgd"].groups
    for group, ready, needed in zip(own, (0.2, 0.4), (0.08, 0.0), strict=True):
        expected = GroupCosts(1500, 250, 0.006, 0.002, 0.004, 0.015, ready, needed, 1000, 0)
        assert vars(group) == pytest.approx(vars(expected))
    like, unlike = after.schemes["topk"].groups[0], after.schemes["dense"].groups[0]
    assert (like.encode, like.decode, like.update, like.up, like.down) == pytest.approx((0.03, 0.02, 0.075, 1000, 500))
    assert (unlike.encode, unlike.decode, unlike.update, unlike.up) == pytest.approx((0.002, 0.001, 0.003, 4052))
    assert (unlike.apply, unlike.ready, unlike.needed) == pytest.approx((0.002, 0.2, 0.08))
    assert (after.host, after.ddp, after.optimizer) == (before.host, before.ddp, before.optimizer)


@pytest.mark.parametrize(
    ("topology", "decode", "update", "sent", "received"),
    [
        # ranks 1 and 2 have one group each, from and to two other workers; rank 3 has none
        ("mesh", 4 * 3 * 0.001, 5 * 0.003, 2 * 2 * 1500, 2 * 2 * 250),
        # the master's share is twice that of a worker, so it has both groups
        ("mesh:master=auto", 4 * 3 * 0.002, 5 * 0.006, 2 * 3 * 1500, 2 * 3 * 250),
        # the master and rank 4 have one group each
        ("sharded:servers=2", 4 * 3 * 0.001, 5 * 0.003, 2 * 3 * 1500, 2 * 3 * 250),
        ("star:down=tree", 4 * 3 * 0.002, 5 * 0.006, 2 * 3 * 1500, 2 * 3 * 250),
        # every worker has both groups, from two other workers
        ("gather", 4 * 3 * 0.002, 5 * 2 * 0.004, 2 * 3 * 2 * 1500, 0),
    ],
)
def test_factors_are_recovered_from_runs_under_other_topologies(
    topology: str, decode: float, update: float, sent: int, received: int, tmp_path: Path
) -> None:
    """Check that runs under other topologies give the factors of the star's run. Records have the longest decoding and the
    longest update of any rank.
    """
    seconds = {**record(1)["seconds"], "decode": decode, "update": update, "downlink": 0.0}
    records = [record(step, seconds=seconds, uplink_bytes=sent, downlink_bytes=received) for step in range(1, 15)]
    own = profile()
    given = replace(own.schemes["qsgd"], grouping={"group_bytes": 4000})
    plain = replace(own.schemes["dense"], groups=tuple(replace(group, update=0.004) for group in own.schemes["dense"].groups))
    own = replace(own, schemes={**own.schemes, "qsgd": given, "dense": plain})
    found = of(make_run(tmp_path / "run", records, topology=topology), own)
    # the profile's if no weights are sent: then every worker updates as under dense
    down, changed = (250, 0.015) if received else (500, 0.003)
    for group, ready, needed in zip(found.profile.schemes["qsgd"].groups, (0.2, 0.4), (0.08, 0.0), strict=True):
        expected = GroupCosts(1500, down, 0.006, 0.002, 0.004, changed, ready, needed, 1000, 0)
        assert vars(group) == pytest.approx(vars(expected))
    assert found.refitted[1:] == pytest.approx((0.604, 0.012, decode, update, sent / 3, received / 3))
    dense = found.profile.schemes["dense"].groups[0]
    assert dense.update == pytest.approx(0.004 if received else 0.02)
    forecast = next(row for row in forecasts(found.profile, SCENARIO, (topology,), ("qsgd",)) if not row.peer)
    assert forecast.seconds == found.refitted.step


def test_predicted_figures_are_the_sums_of_the_profile(tmp_path: Path) -> None:
    found = of(make_run(tmp_path / "run"))
    assert found.predicted[1:] == pytest.approx((0.302, 0.004, 3 * 0.002, 0.006, 2000, 1000))
    assert found.refitted[1:] == pytest.approx(found.run.measured[1:])
    assert found.origin == "given"


def test_a_cost_that_was_not_foreseen_is_shared_out_by_the_coordinates(tmp_path: Path) -> None:
    """Check that a measured coding time, for which the profile has 0, is divided by coordinates: a group of 500 of 2000
    coordinates gets a quarter of it.
    """
    own = profile()
    free = replace(own.schemes["qsgd"], groups=tuple(replace(group, encode=0.0) for group in own.schemes["qsgd"].groups))
    found = of(make_run(tmp_path / "run", plan=plan_of_codecs((QSGD,), (QSGD,) * 3)), replace(own, schemes={"qsgd": free}))
    assert [group.encode for group in found.profile.schemes["qsgd"].groups] == pytest.approx([0.003, 0.009])


def line(coded: int, seconds: float) -> Profile:
    """Return a profile of one group in which only the passes take time, under a scheme with frames of `coded` bytes."""
    group = GroupCosts(coded, coded, 0.0, 0.0, 0.0, 0.0, seconds, 0.0, 2000, 0)
    plan = plan_of_codecs((QSGD,)).to_dict()
    own = profile()
    tensors = tuple(replace(tensor, ready=seconds, needed=0.0) for tensor in own.tensors)
    schemes = {"qsgd": SchemeCosts((group,), 0.0, 0.0, True, settings={"scheme": "qsgd"}, plan=plan)}
    return replace(own, forward=seconds, backward=seconds, tensors=tensors, schemes=schemes)


def single(step: float, nbytes: int) -> list[dict[str, Any]]:
    seconds = {"step": step, "forward_backward": 0.2, "encode": 0.0, "decode": 0.0, "update": 0.0, "downlink": 0.0}
    each = record(1, workers=1, contributing=1, uplink_bytes=nbytes, downlink_bytes=nbytes, seconds=seconds)
    return [{**each, "step": number} for number in range(1, 15)]


def test_the_fitted_rate_is_that_of_a_closed_form(tmp_path: Path) -> None:
    """Check the rate b fitted to a step of one worker and one group: the passes, the frame up and the frame down take .2 s +
    2 * 10^6 bytes / b = .7 s.
    """
    plan = plan_of_codecs((QSGD,))
    path = make_run(tmp_path / "run", single(0.7, 10**6), plan=plan, more={"workers": 1})
    one = replace(SCENARIO, workers=1)
    found = of(path, line(10**5, 0.05), one, given=False)
    assert found.origin == "fitted"
    assert found.scenario.rate == pytest.approx(8 * 2e6 / 0.5 / GOODPUT, rel=1e-4)
    assert found.refitted.step == pytest.approx(0.7, rel=1e-4)
    assert found.predicted.step == pytest.approx(0.1 + 0.05, rel=1e-4)
    path = make_run(tmp_path / "quick", single(0.2, 10**6), plan=plan, more={"workers": 1})
    found = of(path, line(10**5, 0.05), one, given=False)
    assert (found.origin, found.scenario.rate) == ("free", None)


def test_the_rate_of_measured_links_is_that_of_the_slower_direction(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", more={"links": {"round_trip": 0.001, "up": 3e6, "down": 2e6}})
    found = of(path, given=False)
    assert (found.origin, found.scenario.rate) == ("measured", pytest.approx(8 * 2e6 / GOODPUT))


def test_no_rate_is_fitted_where_ranks_share_a_host(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run")
    (path / MACHINES).write_text(json.dumps({"ranks": {str(rank): {"host": "one", "cores": 8} for rank in range(4)}}))
    found = of(path, given=False)
    assert (found.origin, found.scenario.rate) == ("unknown", None)


def test_a_run_without_overlap_needs_all_weights_at_once(tmp_path: Path) -> None:
    found = of(make_run(tmp_path / "run", overlap=False)).profile
    needed = [tensor.needed for tensor in found.tensors] + [group.needed for group in found.schemes["qsgd"].groups]
    assert needed == [0.0] * 4


@pytest.mark.parametrize(
    ("topology", "rate"),
    [
        ("star", 2e5), ("star", 1e6), ("star", None), ("mesh", 2e5), ("mesh", None), ("sharded:servers=2", 2e5), ("gather", 2e5),
        ("gather", None),
    ],
)  # fmt: skip
def test_a_simulated_run_with_other_figures_is_recovered(topology: str, rate: float | None, tmp_path: Path) -> None:
    """Check that the figures of a simulated run are recovered. Its passes take 2.5 times as long as the profile's, and its
    coding, frames and updates differ too.

    The simulated connections take turns by other rules than those of a predicted step, so that the rate is recovered less
    exactly than other figures.
    """
    own, slower = profile(), 2.5
    groups = tuple(
        replace(
            group, up=4000, down=3000, encode=0.007, decode=0.0015, update=0.0045, apply=slower * group.apply,
            ready=slower * group.ready, needed=slower * group.needed,
        )
        for group in own.schemes["qsgd"].groups
    )  # fmt: skip
    costs = replace(own.schemes["qsgd"], groups=groups, grouping={"group_bytes": 4000})
    plain = tuple(replace(group, update=0.0055, apply=slower * group.apply) for group in own.schemes["dense"].groups)
    schemes = {"qsgd": costs, "dense": replace(own.schemes["dense"], groups=plain)}
    truth = replace(own, forward=0.25, backward=0.5, schemes=schemes)
    scenario = replace(SCENARIO, rate=rate)
    config = Config(topology=topology, aggregate_order="arrival" if Config(topology=topology).sends_weights else "rank")
    job = simulate_job(truth, groups_of(truth, "qsgd", config, 3), scenario, config, 14)
    write_records(tmp_path / "run", job, 2000, {})
    (tmp_path / "run" / CONFIG).write_bytes((make_run(tmp_path / "settings", topology=topology) / CONFIG).read_bytes())
    found = of(tmp_path / "run", own, SCENARIO, given=False)
    assert (found.profile.forward, found.profile.backward) == pytest.approx((0.25, 0.5))
    for group, expected in zip(found.profile.schemes["qsgd"].groups, groups, strict=True):
        assert vars(group) == pytest.approx(vars(expected if config.sends_weights else replace(expected, down=500, update=0.003)))
    if not config.sends_weights:
        assert [group.update for group in found.profile.schemes["dense"].groups] == pytest.approx([0.0055] * 2)
    if rate is None:
        assert found.refitted.step == pytest.approx(job.step_times[-2], rel=1e-6)
    else:
        assert found.origin == "fitted"
        assert found.scenario.rate == pytest.approx(rate, rel=0.05)


def test_a_scheme_is_known_by_its_codecs_whatever_it_is_called(tmp_path: Path) -> None:
    own = profile()
    path = make_run(tmp_path / "run", codec="qsgd:levels=15,bucket=512", downlink="qsgd:levels=15,bucket=512")
    assert scheme_in(own, FinishedRun.read(path)) == "qsgd"
    path = make_run(tmp_path / "other", quantization_level=7)
    with pytest.raises(ConfigurationError, match=r"the run's scheme is qsgd with qsgd:levels=127.* has 'qsgd', 'topk', 'dense'"):
        of(path)


def test_a_codec_in_a_file_is_compared_and_not_executed(tmp_path: Path) -> None:
    own = profile()
    named = replace(own.schemes["qsgd"], settings={"scheme": "qsgd", "codec": "nowhere.py:Mine"})
    with pytest.raises(ConfigurationError, match="the run's scheme is qsgd"):
        of(make_run(tmp_path / "run"), replace(own, schemes={"mine": named}))


def test_a_run_of_another_model_is_refused(tmp_path: Path) -> None:
    own = profile()
    bias = replace(own.tensors[1], shape=(500,))
    path = make_run(tmp_path / "run")
    with pytest.raises(ConfigurationError, match=r"another model than the profile of LeNet: bias is of shape \(1000,\) there"):
        of(path, replace(own, tensors=(own.tensors[0], bias)))


def test_profiles_of_earlier_versions_are_refused(tmp_path: Path) -> None:
    own, path = profile(), make_run(tmp_path / "run")
    unnamed = replace(own, tensors=tuple(replace(tensor, name="") for tensor in own.tensors))
    planless = replace(own, schemes={name: replace(costs, plan={}) for name, costs in own.schemes.items()})
    for old in (unnamed, planless):
        with pytest.raises(ConfigurationError, match="an earlier version wrote it: measure again"):
            of(path, old)


def profile_of_one_group(fixed: FixedCosts) -> Profile:
    """Return a profile of a model of 8 MB in 100 tensors, which travels as one group under its scheme, qsgd."""
    size = 2_000_000
    tensors = tuple(TensorTimes((size // 100,), 0.2 * (n + 1) / 100, 0.0, f"t{n}") for n in range(100))
    whole = Plan(
        tuple(Tensor(tensor.name, tensor.shape) for tensor in tensors), (Group(0, (Segment(0, QSGD, 0, (size,)),)),)
    )  # fmt: skip
    costs = SchemeCosts(
        (GroupCosts(size, size, 0.01, 0.01, 0.01, 0.01, 0.2, 0.0, size, 0),), 0.0, 0.0, True, settings={"scheme": "qsgd"},
        plan=whole.to_dict(), fixed=fixed,
    )  # fmt: skip
    return replace(profile(), tensors=tensors, schemes={"qsgd": costs})


def refitted_to_a_mesh_of_two(own: Profile, folder: Path) -> ProfileRefit:
    """Return `own` refitted to a run of two workers under a mesh, which has about eight groups."""
    records = [record(step, workers=2, contributing=2) for step in range(1, 15)]
    plan = routed(own, "qsgd", "mesh", 2).plan
    return of(make_run(folder, records, plan=plan, topology="mesh", more={"workers": 2}), own, replace(SCENARIO, workers=2))


def test_groups_under_another_topology_follow_from_the_workers_after_a_refit(tmp_path: Path) -> None:
    """Check that a mesh has about four groups for each worker after a refit, where the profile has one group."""
    found = refitted_to_a_mesh_of_two(profile_of_one_group(FixedCosts()), tmp_path / "run").profile
    counts = [len(routed(found, "qsgd", topology, n).plan.groups) for topology, n in (("mesh", 2), ("mesh", 8), ("star", 2))]
    assert counts[2] == 1
    assert [count / n for count, n in zip(counts[:2], (2, 8), strict=True)] == pytest.approx([4, 4], abs=0.5)


def test_fixed_costs_have_the_factors_of_the_groups(tmp_path: Path) -> None:
    """Check that a refit of a run with other groups than the profile's has the run's figures, although a part of their costs is
    fixed.
    """
    found = refitted_to_a_mesh_of_two(profile_of_one_group(FixedCosts(0.003, 0.0, 0.002, 0.004)), tmp_path / "run")
    for figure in ("encode", "decode", "update"):
        assert getattr(found.refitted, figure) == pytest.approx(getattr(found.run.measured, figure), rel=1e-6)
    changed, before = found.profile.schemes["qsgd"], found.predicted
    assert changed.fixed.encode == pytest.approx(0.003 * found.run.measured.encode / before.encode)
    assert changed.fixed.decode == pytest.approx(0.002 * found.run.measured.decode / before.decode)


def test_the_lead_of_a_scheme_is_that_under_the_runs_optimizer(tmp_path: Path) -> None:
    """Check that a run that names the lead of its scheme is of this scheme, and that a run with another lead is not."""
    own = profile()
    costs = replace(own.schemes["qsgd"], settings={"scheme": "polar-2bit"})
    own = replace(own, schemes={"polar": costs})
    for optimizer, lead, same in (("adamw", 0.3, True), ("adamw", 0.0, False), ("sgd", 0.0, True), ("sgd", 0.3, False)):
        settings = {"scheme": "polar-2bit", "optimizer": optimizer, "downlink_lead": lead}
        run = FinishedRun.read(make_run(tmp_path / f"{optimizer}-{lead}", **settings))
        if same:
            assert scheme_in(own, run) == "polar"
        else:
            with pytest.raises(ConfigurationError, match="the run's scheme is polar-2bit"):
                scheme_in(own, run)


def test_a_gather_is_known_by_its_codec_alone_since_no_weights_are_sent(tmp_path: Path) -> None:
    settings = {"topology": "gather", "codec": QSGD}
    assert scheme_in(profile(), FinishedRun.read(make_run(tmp_path / "run", **settings))) == "qsgd"
