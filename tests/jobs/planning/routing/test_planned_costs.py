"""Costs on the groups of a plan that differs from the measured one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from psnode.config import Config
from psnode.config.resolve import resolve
from psnode.jobs.planning.host_prices.fixed_costs import fixed_costs
from psnode.jobs.planning.profile import FixedCosts, Profile
from psnode.jobs.planning.routing.planned_costs import on_plan
from psnode.plans.groups import IDENTITY
from tests.jobs.planning.refitting.run_cases import QSGD, plan_of_codecs, profile


def test_groups_of_another_plan_get_bytes_by_the_kind_of_their_coordinates() -> None:
    """Check bytes of groups: a header has 52 bytes, a coded coordinate .948 (of the measured 2000 - 2 * 52), and a plain
    coordinate 4.
    """
    own = profile()
    found = on_plan(own, own.schemes["qsgd"], plan_of_codecs((QSGD,), (QSGD, QSGD, IDENTITY)))
    assert [(group.coded, group.plain) for group in found.groups] == [(500, 0), (1000, 500)]
    assert [group.up for group in found.groups] == [round(52 + 0.948 * 500), round(52 + 0.948 * 1000 + 4 * 500)]
    assert [group.encode for group in found.groups] == pytest.approx([0.001, 0.003])
    assert [(group.ready, group.needed) for group in found.groups] == [(0.1, 0.04), (0.2, 0.0)]


def test_every_coded_segment_has_the_fixed_costs(tmp_path: Path) -> None:
    """Check seconds of three coded segments in two groups. The measured groups had one segment each; their coders together took
    4 ms, of which 2 x .5 are fixed, so that each coordinate has 3 ms / 2000.
    """
    own = profile()
    costs = replace(own.schemes["qsgd"], fixed=FixedCosts(encode=5e-4))
    replace(own, schemes={"qsgd": costs}).save(tmp_path / "profile.json")
    costs = Profile.load(tmp_path / "profile.json").schemes["qsgd"]
    found = on_plan(own, costs, plan_of_codecs((QSGD,), (QSGD, QSGD, IDENTITY)))
    assert [group.encode for group in found.groups] == pytest.approx([0.0005 + 0.003 / 4, 2 * 0.0005 + 3 * 0.003 / 4])


def test_fixed_costs_are_at_most_those_of_the_measured_groups() -> None:
    """Check that no part of a cost is negative: with fixed costs above the measured ones, all of these are fixed. Two measured
    segments together take 2 ms to decode, so that each of three takes 1 ms.
    """
    own = profile()
    found = on_plan(own, replace(own.schemes["qsgd"], fixed=FixedCosts(decode=1.0)), plan_of_codecs((QSGD,), (QSGD, QSGD)))
    assert [group.decode for group in found.groups] == pytest.approx([0.001, 0.002])


def test_a_direction_without_a_codec_has_no_fixed_costs() -> None:
    coded, plain = fixed_costs(resolve(Config(scheme="topk", downlink="dense"))), fixed_costs(resolve(Config(scheme="dense")))
    assert min(coded.encode, coded.decode) > 0
    assert (coded.apply, coded.update) == (0, 0)
    assert plain == FixedCosts()
    both = fixed_costs(resolve(Config(scheme="qsgd")))
    assert np.isfinite([both.encode, both.apply, both.decode, both.update]).all() and min(both.apply, both.update) > 0
