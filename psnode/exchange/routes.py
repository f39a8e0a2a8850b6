"""Routes of groups: gradients to a root, and weights from the root to every reader.

A topology is a function from the ranks and the plan to routes; only this module refers to topologies by name, beside the setting
that selects one. A sender is given the rank to which a group's gradient goes, a receiver the rank from which its weights come,
and a shard the routes of which its rank is the root.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from psnode.config import Config
from psnode.config.effects import AUTO, CLIPPED
from psnode.config.train_settings import BY_TRIAL
from psnode.errors import ConfigurationError
from psnode.exchange.shard.consistency import waits_for_all
from psnode.plans.groups import Plan
from psnode.plans.roles import MASTER, Layout
from psnode.plans.rule import DEFAULT_GROUP_BYTES


@dataclass(frozen=True, slots=True)
class Route:
    """Route of one group. `root`: the rank that completes the sum of its gradients; `readers`: the ranks that get its weights."""

    root: int
    readers: Sequence[int]

    def up(self, rank: int) -> int:
        """Return the rank to which `rank` sends its gradient."""
        return self.root

    def down(self, rank: int) -> int:
        """Return the rank from which `rank` gets the weights."""
        return self.root

    def heirs(self, rank: int) -> tuple[int, ...]:
        """Return the ranks to which `rank` sends the weights. A root that is a reader sends them to itself as well."""
        return tuple(self.readers) if rank == self.root else ()


def star(layout: Layout, plan: Plan) -> tuple[Route, ...]:
    """Return the routes of a star, by group: every worker sends to the master, and the master sends to every reader."""
    return tuple(Route(MASTER, layout.readers) for _ in plan.groups)


def mesh(layout: Layout, plan: Plan) -> tuple[Route, ...]:
    """Return the routes of a mesh, by group: every worker is the root of some groups, of about equal sizes together.

    The largest group goes to the worker with the fewest coordinates so far, then the next one. This is the longest-
    processing-time rule (Graham, SIAM Journal on Applied Mathematics 1969), whose largest share is at most 4/3 of the least
    possible one.
    """
    loads = dict.fromkeys(layout.computing, 0)
    roots: dict[int, int] = {}
    for group in sorted(plan.groups, key=lambda group: (-group.size, group.index)):
        roots[group.index] = root = min(loads, key=lambda rank: (loads[rank], rank))
        loads[root] += group.size
    return tuple(Route(roots[group.index], layout.readers) for group in plan.groups)


_GROUPS_A_ROOT = 4
_LEAST_GROUP_BYTES = 1 << 16

_TOPOLOGIES = {"star": star, "mesh": mesh}


def routes_of(layout: Layout, plan: Plan, topology: str = "star") -> tuple[Route, ...]:
    """Return the routes of a job under the setting `topology`, by group. Every rank computes the same routes."""
    return _TOPOLOGIES[topology](layout, plan)


def is_central(topology: str) -> bool:
    """Return True if the master is the root of all groups."""
    return topology == "star"


PREDICTED = ("star", "mesh")  # whose routes determine the work of every rank in a step


def require_predicted(topology: str, program: str) -> None:
    """Raise ConfigurationError for a topology whose steps `program` cannot predict from routes alone."""
    if topology not in PREDICTED:
        raise ConfigurationError(f"{program} knows --topology {' and '.join(PREDICTED)}, not {topology}")


def require_central(config: Config, program: str) -> None:
    """Raise ConfigurationError unless the master is the root of all groups, which is all that `program` knows."""
    if not is_central(config.topology):
        raise ConfigurationError(f"{program} knows --topology star alone")


def group_bytes_of(topology: str, whole: int, workers: int) -> int:
    """Return the size of groups for a model of `whole` bytes that is dealt among `workers` in parts of about equal sizes.

    There are about four groups for each worker, none below 64 KiB and none above the usual size.
    """
    if is_central(topology):
        return DEFAULT_GROUP_BYTES
    return min(DEFAULT_GROUP_BYTES, max(_LEAST_GROUP_BYTES, -(-whole // (_GROUPS_A_ROOT * workers))))


def refuse_other_roots(config: Config, aggregator: str = "", *, constrains: bool = False) -> None:
    """Raise ConfigurationError for settings that need all weights, or decisions about a round, in one place.

    Nothing is refused if the master is the root of all groups. `constrains`: the task has a constraint.
    """
    if is_central(config.topology):
        return
    reasons = {
        "Task.constrain": (constrains, "changes all weights at once, and every worker has a part of them"),
        "--norm-cap": (
            config.norm_cap not in (0, AUTO), "compares norms of whole gradients, and every worker sees a part of them"
        ),
        f"--aggregator {CLIPPED}": (
            aggregator == CLIPPED, "compares norms of whole gradients, and every worker sees a part of them"
        ),
        "--consistency": (not waits_for_all(config), "would close the parts of a version with gradients of different workers"),
        "--plan auto": (config.plan == BY_TRIAL, "measures steps in which rank 0 updates the weights"),
        "--spares": (config.spares > 0, "cannot take over the part of the weights that a worker has"),
        "--gpu-master": (config.gpu_master, "has no weights to update on a master that only keeps the records"),
    }  # fmt: skip
    for setting, (given, reason) in reasons.items():
        if given:
            raise ConfigurationError(f"{setting} {reason} under --topology {config.topology}: use --topology star")
