"""Parts of a plan: some of its groups, with a flat vector of their own. Code that uses a plan can also use a part of a plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from psnode.plans.groups import Group, Plan, Tensor


@dataclass(frozen=True)
class PlanPart:
    """Part of the plan `whole`. `own`: a plan of the part's groups, whose flat vector holds only these groups, one after another.

    Groups and segments of `own` keep their numbers in `whole`, so that `own.groups[i].index` may differ from i. If only some
    coordinates of a tensor belong to the part, the tensor is flat in `own`. Then `pieces` maps the tensor's name to the ranges
    of these coordinates within the tensor, in order.
    """

    whole: Plan
    own: Plan
    pieces: Mapping[str, list[slice]] = field(default_factory=dict)

    @property
    def groups(self) -> dict[int, Group]:
        """The part's groups, by their numbers in the whole plan. Their coordinates are positions in the part's own vector."""
        return {group.index: group for group in self.own.groups}

    @property
    def is_whole(self) -> bool:
        """True if all groups of the plan belong to the part."""
        return self.own is self.whole


def all_of(plan: Plan) -> PlanPart:
    """Return the part that is the whole plan."""
    return PlanPart(plan, plan)


def part_of(plan: Plan, groups: Iterable[int]) -> PlanPart:
    """Return the part of `plan` that consists of the groups with the numbers `groups`. Raises ValueError for a wrong number."""
    chosen = sorted(set(groups))
    if unknown := [index for index in chosen if not 0 <= index < len(plan.groups)]:
        raise ValueError(f"the plan has {len(plan.groups)} groups, and none of number {unknown[0]}")
    if len(chosen) == len(plan.groups):
        return all_of(plan)
    there = [plan.groups[index] for index in chosen]
    tensors: list[Tensor] = []
    pieces: dict[str, list[slice]] = {}
    for tensor, place in zip(plan.tensors, plan.slices().values(), strict=True):
        cut = [
            slice(max(place.start, group.start) - place.start, min(place.stop, group.stop) - place.start)
            for group in there
            if group.start < place.stop and place.start < group.stop
        ]
        if not cut:
            continue
        size = sum(each.stop - each.start for each in cut)
        if size < tensor.size:
            pieces[tensor.name] = cut
        tensors.append(tensor if size == tensor.size else Tensor(tensor.name, (size,)))
    return PlanPart(plan, Plan(tuple(tensors), tuple(_laid(there))), pieces)


def _laid(groups: Iterable[Group]) -> Iterable[Group]:
    """Yield the groups with new coordinates: the first begins at 0, and each other group where the previous group ends."""
    start = 0
    for group in groups:
        shift = start - group.start
        yield Group(group.index, tuple(replace(each, start=each.start + shift) for each in group.segments))
        start += group.size
