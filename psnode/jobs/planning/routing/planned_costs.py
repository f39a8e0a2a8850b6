"""The costs of a scheme on the groups of any plan, calculated from those of the measured groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from psnode.jobs.planning.profile import GroupCosts, Profile, SchemeCosts
from psnode.plans.groups import IDENTITY, Group, Plan
from psnode.protocol.wire import HEADER_BYTES


def on_plan(profile: Profile, costs: SchemeCosts, plan: Plan) -> SchemeCosts:
    """Return the costs of a scheme on the groups of `plan`, which may differ from the measured groups.

    The bytes of a new group are those of a header, four for each plain coordinate, and for each coded coordinate the average
    of the measured groups. Its seconds are the scheme's fixed costs, once for every coded segment, and a part of the rest of
    the measured seconds, in proportion to its coordinates. If the groups of `plan` are the measured ones, the costs do not
    change.
    """
    before = Plan.from_dict(costs.plan)
    if before.groups == plan.groups:
        return replace(costs, plan=plan.to_dict())
    times, places = {tensor.name: tensor for tensor in profile.tensors}, plan.slices()
    segments = sum(map(_coded_segments, before.groups))
    fixed, rest = dict[str, float](), dict[str, float]()
    for key in ("encode", "apply", "decode", "update"):
        seconds = sum(getattr(group, key) for group in costs.groups)
        fixed[key] = min(getattr(costs.fixed, key), seconds / max(segments, 1))
        rest[key] = seconds - segments * fixed[key]

    def rate(nbytes: Sequence[int]) -> float:
        """Return the average bytes of a coded coordinate. `nbytes`: the bytes of the measured frames, by group."""
        coded, plain = sum(group.coded for group in costs.groups), sum(group.plain for group in costs.groups)
        return max(0.0, sum(nbytes) - HEADER_BYTES * len(nbytes) - 4 * plain) / coded if coded else 4.0

    up, down = rate([group.up for group in costs.groups]), rate([group.down for group in costs.groups])

    def of(group: Group) -> GroupCosts:
        inside = [times[name] for name, place in places.items() if place.start < group.stop and group.start < place.stop]
        coded = sum(segment.size for segment in group.segments if segment.codec != IDENTITY)
        plain, share = HEADER_BYTES + 4 * (group.size - coded), group.size / max(plan.size, 1)
        return GroupCosts(
            round(plain + up * coded), round(plain + down * coded),
            **{key: _coded_segments(group) * fixed[key] + share * cost for key, cost in rest.items()},
            ready=max((tensor.ready for tensor in inside), default=0.0),
            needed=min((tensor.needed for tensor in inside), default=0.0), coded=coded, plain=group.size - coded,
        )  # fmt: skip

    return replace(costs, groups=tuple(map(of, plan.groups)), plan=plan.to_dict())


def _coded_segments(group: Group) -> int:
    return sum(segment.codec != IDENTITY for segment in group.segments)
