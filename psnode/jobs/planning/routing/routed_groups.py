"""The groups of a predicted job under a topology, with their costs and their routes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from psnode.config import Config
from psnode.config.names import DENSE
from psnode.errors import ConfigurationError
from psnode.exchange.routes.refusals import accepted, refuse_other_roots
from psnode.exchange.routes.route import Route
from psnode.exchange.routes.topologies import group_bytes_of, routes_of
from psnode.jobs.planning.profile import GroupCosts, Profile, SchemeCosts
from psnode.jobs.planning.routing.planned_costs import on_plan
from psnode.plans.groups import IDENTITY, Plan, Tensor
from psnode.plans.roles import Layout
from psnode.plans.rule import DEFAULT_GROUP_BYTES, grouping_of, make_plan
from psnode.protocol.wire import HEADER_BYTES

USUAL = Config().topology


@dataclass(frozen=True)
class RoutedGroups:
    """The groups of `plan` in a job of `layout`: their `costs` under a scheme, and the `routes` on which they travel."""

    costs: SchemeCosts
    plan: Plan
    routes: tuple[Route, ...]
    layout: Layout

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of coordinates of every group."""
        return tuple(group.size for group in self.plan.groups)

    @property
    def frames(self) -> int:
        """The number of frames with gradients in a step, including those from a rank to itself."""
        return self.layout.workers * sum(len(route.roots) for route in self.routes)


def routed(profile: Profile, name: str, topology: str, workers: int) -> RoutedGroups:
    """Return the groups of a scheme of the profile in a job of `workers` workers under the setting `topology`.

    The groups are those of a run under this topology. If the measured groups differ from them, the costs are those of
    psnode.jobs.planning.routing.planned_costs.on_plan. If every worker updates the weights itself, the update has the cost of
    a dense downlink, and the weights stay on the worker. Raises ConfigurationError for a scheme that train refuses under this
    topology, and for a profile of an earlier version of psnode, which contained no plans.
    """
    costs = profile.schemes[name]
    if not costs.plan:
        raise ConfigurationError("this profile holds no plans, since an earlier version wrote it: measure again")
    _refuse(costs, topology)
    layout, plan = Layout(workers, servers=Config(topology=topology).servers), Plan.from_dict(costs.plan)
    size = group_bytes_of(topology, 4 * plan.size, workers)
    rules = _grouping(costs)
    if size != DEFAULT_GROUP_BYTES and rules["group_by"] == "bytes" and not rules["group_bytes"]:
        plan = make_plan(_tensors(profile, plan), _codec(plan), **{**rules, "group_bytes": size})
        costs = on_plan(profile, costs, plan)
    return on_routes(profile, costs, plan, topology, layout)


def on_routes(profile: Profile, costs: SchemeCosts, plan: Plan, topology: str, layout: Layout) -> RoutedGroups:
    """Return the groups of `plan` on their routes in a job of `layout`. `costs`: the costs of these groups under a scheme."""
    if not Config(topology=topology).sends_weights:
        costs = _with_dense_weights(profile, costs, plan)
    return RoutedGroups(costs, plan, routes_of(layout, plan, topology), layout)


def fits(profile: Profile, name: str, topology: str) -> bool:
    """Return True if train accepts the scheme `name` of the profile under a topology."""
    try:
        _refuse(profile.schemes[name], topology)
    except ConfigurationError:
        return False
    return True


def possible(config: Config, topologies: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the topologies under which train accepts `config`, and for each of the others the line of its error.

    Raises ConfigurationError if there is only one topology and it is refused.
    """
    found, refused = accepted(config, topologies, partial(refuse_other_roots, downlink=config.downlink or DENSE))
    if len(topologies) == 1 and refused:
        raise ConfigurationError(refused[0])
    return found, refused


def _refuse(costs: SchemeCosts, topology: str) -> None:
    """Raise ConfigurationError for a scheme that train refuses under a topology."""
    settings = costs.settings
    refuse_other_roots(
        Config(topology=topology), str(settings.get("aggregator") or ""), downlink=str(settings.get("downlink") or DENSE)
    )


def _with_dense_weights(profile: Profile, costs: SchemeCosts, plan: Plan) -> SchemeCosts:
    """Return the costs with updates and weights that are not coded.

    Their seconds per coordinate are those of the scheme dense or, if the profile does not contain dense, the scheme's own
    average.
    """
    plain = profile.schemes.get(DENSE, costs)
    seconds = {key: sum(getattr(group, key) for group in plain.groups) for key in ("apply", "update")}

    def of(group: GroupCosts, size: int) -> GroupCosts:
        share = size / max(plan.size, 1)
        return replace(group, down=HEADER_BYTES + 4 * size, **{key: share * cost for key, cost in seconds.items()})

    groups = zip(costs.groups, plan.groups, strict=True)
    return replace(costs, groups=tuple(of(group, planned.size) for group, planned in groups))


def _grouping(costs: SchemeCosts) -> dict[str, Any]:
    """Return the settings by which the plan was made. Settings that the profile does not contain have their default values."""
    usual = grouping_of(Config())
    return {name: costs.grouping.get(name, value) for name, value in usual.items()}


def _tensors(profile: Profile, plan: Plan) -> list[Tensor]:
    """Return the tensors in the order in which their gradients finish."""
    if problem := plan.difference({tensor.name: tensor.shape for tensor in profile.tensors}):
        raise ConfigurationError(f"the profile's plan is of another model: {problem}; measure again")
    return [Tensor(tensor.name, tensor.shape) for tensor in profile.tensors]


def _codec(plan: Plan) -> str:
    """Return the codec of the coded segments of a plan. They all have the same codec, since the plan was made by the rule."""
    return next((segment.codec for segment in plan.segments if segment.codec != IDENTITY), IDENTITY)
