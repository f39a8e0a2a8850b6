"""The loads of a group's stages under every topology, beside numbers counted by hand."""

from __future__ import annotations

import pytest

from psnode.config import Config
from psnode.exchange.routes.topologies import routes_of
from psnode.jobs.planning.profile import SchemeCosts
from psnode.jobs.planning.routing.routed_groups import RoutedGroups
from psnode.jobs.planning.search.stage_loads import StageLoads
from psnode.plans.groups import Tensor
from psnode.plans.roles import Layout
from psnode.plans.rule import make_plan

PLAN = make_plan([Tensor(f"{place}.weight", (64, 64)) for place in range(12)], "identity", group_by="layer")


@pytest.mark.parametrize(
    ("topology", "expected"),
    [
        ("star", StageLoads(4, 4, 4, 1.0)),
        ("star:down=tree", StageLoads(4, 4, 2, 1.0)),
        ("mesh", StageLoads(4, 3, 3, 4.0)),  # three groups a root
        ("mesh:master=auto", StageLoads(4, 4, 4, 3.0)),  # of twelve groups four are the master's
        ("sharded:servers=3", StageLoads(4, 4, 4, 3.0)),
        ("gather", StageLoads(4, 3, 0, 1.0, 4)),
    ],
)
def test_of_four_workers_and_twelve_equal_groups(topology: str, expected: StageLoads) -> None:
    layout = Layout(4, servers=Config(topology=topology).servers)
    groups = RoutedGroups(SchemeCosts((), 0.0, 0.0, lossy=False), PLAN, tuple(routes_of(layout, PLAN, topology)), layout)
    assert StageLoads.of(groups, topology) == expected


def test_of_a_star_by_the_number_of_workers() -> None:
    layout = Layout(5)
    groups = RoutedGroups(SchemeCosts((), 0.0, 0.0, lossy=False), PLAN, tuple(routes_of(layout, PLAN)), layout)
    assert StageLoads.of(groups, "star") == StageLoads.of_one_root(5)


def test_roots_do_not_depend_on_the_groups() -> None:
    """Check that a mesh has as many roots as workers, even if there are fewer groups, so that a search values more of them."""
    layout, plan = Layout(16), make_plan([Tensor("weight", (64, 64))], "identity", group_by="model")
    groups = RoutedGroups(SchemeCosts((), 0.0, 0.0, lossy=False), plan, tuple(routes_of(layout, plan, "mesh")), layout)
    assert StageLoads.of(groups, "mesh") == StageLoads(16, 15, 15, 16.0)
