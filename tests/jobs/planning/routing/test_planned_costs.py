"""Costs on the groups of a plan that differs from the measured one."""

from __future__ import annotations

import pytest

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
