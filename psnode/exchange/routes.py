"""Routes of groups: gradients to a root, and weights from the root to every reader.

A topology is a function from the ranks and the plan to routes; only this module refers to topologies by name, beside the setting
that selects one. A sender is given the rank to which a group's gradient goes, a receiver the rank from which its weights come,
and a shard the routes of which its rank is the root.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from psnode.config import Config
from psnode.config.effects import AUTO, CLIPPED
from psnode.config.names import DENSE
from psnode.config.train_settings import BY_TRIAL
from psnode.errors import ConfigurationError
from psnode.exchange.shard.consistency import waits_for_all
from psnode.plans.groups import Plan
from psnode.plans.roles import MASTER, Layout
from psnode.plans.rule import DEFAULT_GROUP_BYTES


@dataclass(frozen=True, slots=True)
class Route:
    """Route of one group. `root`: the rank that completes the sum of its gradients; `readers`: the ranks that get its weights.

    `everywhere`: every reader is a root, which completes the sum and updates the weights for itself alone.
    """

    root: int
    readers: Sequence[int]
    everywhere: bool = False

    @property
    def roots(self) -> tuple[int, ...]:
        """The ranks that complete the sum of the group's gradients and update its weights, ascending."""
        return tuple(self.readers) if self.everywhere else (self.root,)

    def up(self, rank: int) -> tuple[int, ...]:
        """Return the ranks to which `rank` sends its gradient."""
        return self.roots

    def down(self, rank: int) -> int:
        """Return the rank from which `rank` gets the weights."""
        return rank if self.everywhere else self.root

    def heirs(self, rank: int) -> tuple[int, ...]:
        """Return the ranks to which `rank` sends the weights. A root that is a reader sends them to itself as well."""
        if self.everywhere:
            return (rank,) if rank in self.readers else ()
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


def gather(layout: Layout, plan: Plan) -> tuple[Route, ...]:
    """Return the routes of a gather, by group: every worker sends to all workers, each of which updates all weights."""
    return tuple(Route(layout.first, layout.computing, everywhere=True) for _ in plan.groups)


_GROUPS_A_ROOT = 4
_LEAST_GROUP_BYTES = 1 << 16

_TOPOLOGIES = {"star": star, "mesh": mesh, "gather": gather}


def routes_of(layout: Layout, plan: Plan, topology: str = "star") -> tuple[Route, ...]:
    """Return the routes of a job under the setting `topology`, by group. Every rank computes the same routes."""
    return _TOPOLOGIES[topology](layout, plan)


def is_central(topology: str) -> bool:
    """Return True if the master is the root of all groups."""
    return topology == "star"


def are_parts(topology: str) -> bool:
    """Return True if there are several roots, each with a part of the weights; otherwise each root updates all of them."""
    return topology not in ("star", "gather")


def sent_in_a_step(topology: str, workers: int, up: float, down: float) -> tuple[float, float]:
    """Return the bytes of gradients and of weights that a step of the job moves between ranks.

    `up`: the bytes of one worker's coded gradient; `down`: those of the weights that one worker gets.
    """
    if is_central(topology):
        return workers * up, workers * down
    if are_parts(topology):  # of which every worker keeps its own
        return (workers - 1) * up, (workers - 1) * down
    return workers * (workers - 1) * up, 0.0


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
    if not are_parts(topology):
        return DEFAULT_GROUP_BYTES
    return min(DEFAULT_GROUP_BYTES, max(_LEAST_GROUP_BYTES, -(-whole // (_GROUPS_A_ROOT * workers))))


def refuse_other_roots(config: Config, aggregator: str = "", *, constrains: bool = False, downlink: str = DENSE) -> None:
    """Raise ConfigurationError for settings that need all weights, or decisions about a round, in one place.

    Nothing is refused if the master is the root of all groups. `constrains`: the task has a constraint. `downlink`: that of the
    scheme.
    """
    if is_central(config.topology):
        return
    _require_weights_to_send(config, downlink)
    if are_parts(config.topology):
        reasons = _reasons_of_parts(config, aggregator, constrains=constrains)
    else:
        reasons = _reasons_of_copies(config, constrains=constrains)
    for setting, (given, reason) in reasons.items():
        if given:
            raise ConfigurationError(f"{setting} {reason} under --topology {config.topology}: use --topology star")


def _reasons_of_parts(config: Config, aggregator: str, *, constrains: bool) -> Mapping[str, tuple[bool, str]]:
    """Return by setting whether it is given, and the reason for which it is refused if every root has a part of the weights."""
    return {
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


def _reasons_of_copies(config: Config, *, constrains: bool) -> Mapping[str, tuple[bool, str]]:
    """Return by setting whether it is given, and the reason for which it is refused if every worker updates all weights."""
    return {
        "Task.constrain": (constrains, "changes the model of rank 0, and every worker updates weights of its own"),
        "--consistency": (not waits_for_all(config), "leaves gradients out, and every worker would have to leave out the same"),
        "--aggregate-order arrival": (config.aggregate_order != "rank", "would add in another order on every worker"),
        "--plan auto": (config.plan == BY_TRIAL, "measures steps in which rank 0 updates the weights"),
        "--spares": (config.spares > 0, "would have to add up all gradients, as workers do"),
        "--gpu-master": (config.gpu_master, "has no weights to update on a master that only keeps the records"),
    }  # fmt: skip


def _require_weights_to_send(config: Config, downlink: str) -> None:
    """Raise ConfigurationError for a coded `downlink` where no weights are sent."""
    if downlink != DENSE and not config.sends_weights:
        raise ConfigurationError(
            f"--downlink {downlink} codes weights, and none are sent under --topology {config.topology}: begin the run with "
            "--downlink dense, or use --topology star"
        )


def refuse_unlike_processors(config: Config, arithmetic: Mapping[int, Mapping[str, object]], threads: Mapping[int, int]) -> None:
    """Raise ConfigurationError unless all workers round alike, if each of them updates all weights.

    By rank of each worker, `arithmetic`: see psnode.exchange.machine; `threads`: their number, by which torch divides
    a tensor that it adds up.
    """
    if config.sends_weights:
        return
    first = min(arithmetic)
    ending = f"all workers have to get the same bits under --topology {config.topology}"
    for rank, found in sorted(arithmetic.items()):
        ranks = f"ranks {first} and {rank}"
        if found != arithmetic[first]:
            raise ConfigurationError(
                f"the processors of {ranks} round updates of weights differently, and {ending}: use --topology mesh"
            )
        if config.whole_tensors and threads[rank] != threads[first]:
            raise ConfigurationError(
                f"{ranks} have {threads[first]} and {threads[rank]} threads, by which --optimizer {config.optimizer} may round "
                f"differently, and {ending}: set --threads"
            )
