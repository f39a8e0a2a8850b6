"""A part of a plan: the same groups and segments, with a vector of its own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psnode.plans.groups import Plan, Tensor
from psnode.plans.part import all_of, part_of
from psnode.plans.rule import make_plan


def plan_of(sizes: list[int], group_bytes: int) -> Plan:
    tensors = [Tensor(f"layer{index}.weight", (size,)) for index, size in enumerate(sizes)]
    return make_plan(tensors, "qsgd", group_by="bytes", group_bytes=group_bytes, min_compress_bytes=0)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 40000), min_size=1, max_size=8), st.sampled_from([16384, 65536]), st.data())
def test_a_part_has_each_coordinate_of_its_groups_once_in_order(sizes: list[int], group_bytes: int, data: st.DataObject) -> None:
    """Check that a random part has each coordinate of its groups once, in order. Coordinates and tensors are identified by
    their positions in the whole.
    """
    plan = plan_of(sizes, group_bytes)
    chosen = data.draw(st.sets(st.sampled_from(range(len(plan.groups)))))
    part, places = part_of(plan, chosen), np.arange(plan.size)
    expected = [places[group.start : group.stop] for group in plan.groups if group.index in chosen]
    own = np.concatenate([*expected, np.empty(0, int)])
    assert part.own.size == own.size
    assert list(part.groups) == sorted(chosen)
    for index, group in part.groups.items():
        there = plan.groups[index]
        assert np.array_equal(own[group.start : group.stop], places[there.start : there.stop])
        for segment, other in zip(group.segments, there.segments, strict=True):
            assert (segment.index, segment.codec, segment.shape) == (other.index, other.codec, other.shape)
            assert np.array_equal(own[segment.start : segment.stop], places[other.start : other.stop])
    for name, where in part.own.slices().items():
        tensor = places[plan.slices()[name]]
        pieces = [tensor[each] for each in part.pieces.get(name, [slice(None)])]
        assert np.array_equal(own[where], np.concatenate(pieces))
    assert part.is_whole == (len(chosen) == len(plan.groups))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 20000), min_size=1, max_size=8), st.data())
def test_a_group_covers_the_same_tensors_in_a_part(sizes: list[int], data: st.DataObject) -> None:
    """Check that the tensors of a group are the same in a part, since frames identify tensors without a gradient by their
    number among these.
    """
    plan = plan_of(sizes, 16384)
    part = part_of(plan, data.draw(st.sets(st.sampled_from(range(len(plan.groups))))))
    for index, group in part.groups.items():
        there = plan.groups[index]
        assert list(part.own.covering(group.start, group.stop)) == list(plan.covering(there.start, there.stop))


def test_all_groups_are_the_plan_itself() -> None:
    plan = plan_of([30000, 7], 16384)
    assert part_of(plan, range(len(plan.groups))).own is plan and all_of(plan).own is plan


@pytest.mark.parametrize("number", [-1, 99])
def test_a_group_that_the_plan_does_not_have_is_refused(number: int) -> None:
    with pytest.raises(ValueError, match=f"none of number {number}"):
        part_of(plan_of([5], 16384), [number])
