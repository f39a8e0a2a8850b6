"""Routes of groups: gradients to a root, and weights from the root to every reader.

A topology is a function from the ranks and the plan to routes; only this module refers to topologies by name, beside the setting
that selects one. A sender is given the rank to which a group's gradient goes, a receiver the rank from which its weights come,
and a shard the routes of which its rank is the root.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from psnode.config import Config
from psnode.config.effects import AUTO, CLIPPED
from psnode.config.names import DENSE
from psnode.config.train_settings import BY_TRIAL
from psnode.errors import ConfigurationError
from psnode.exchange.shard.consistency import waits_for_all
from psnode.plans.groups import Plan
from psnode.plans.roles import MASTER, Layout
from psnode.plans.rule import DEFAULT_GROUP_BYTES


class Sends(NamedTuple):
    """Ranks to which a root sends a group's weights: those that pass them on to their heirs, and those that only use them."""

    passed_on: tuple[int, ...]
    used: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Route:
    """Route of one group. `root`: the rank that completes the sum of its gradients; `readers`: the ranks that get its weights."""

    root: int
    readers: Sequence[int]

    @property
    def roots(self) -> tuple[int, ...]:
        """The ranks that complete the sum of the group's gradients and update its weights, ascending."""
        return (self.root,)

    def up(self, rank: int) -> tuple[int, ...]:
        """Return the ranks to which `rank` sends its gradient."""
        return self.roots

    def down(self, rank: int) -> int:
        """Return the rank from which `rank` gets the weights."""
        return self.root

    def heirs(self, rank: int) -> tuple[int, ...]:
        """Return the ranks to which `rank` sends the weights. A root that is a reader sends them to itself as well."""
        return tuple(self.readers) if rank == self.root else ()

    def of_root(self, root: int) -> Route:
        """Return the part of the route on which the root `root` sends weights."""
        return self

    def behind(self, rank: int) -> frozenset[int]:
        """Return the readers to which weights come by way of the reader `rank`."""
        return frozenset()

    def sends(self, readers: Collection[int]) -> Sends:
        """Return the ranks to which the root sends the weights, so that they reach those of `readers` that the route names."""
        return Sends((), tuple(rank for rank in self.readers if rank in readers))


@dataclass(frozen=True, slots=True)
class CopiedRoute(Route):
    """Route on which every reader is a root, which completes the sum and updates the weights for itself alone."""

    @property
    def roots(self) -> tuple[int, ...]:
        """The ranks that complete the sum of the group's gradients and update its weights, ascending."""
        return tuple(self.readers)

    def down(self, rank: int) -> int:
        """Return `rank`, which has its weights from itself."""
        return rank

    def heirs(self, rank: int) -> tuple[int, ...]:
        """Return the ranks to which `rank` sends the weights: itself, if it is a reader."""
        return (rank,) if rank in self.readers else ()

    def of_root(self, root: int) -> Route:
        """Return the route from the root `root` to itself."""
        return Route(root, (root,))


@dataclass(frozen=True, slots=True)
class PassedOnRoute(Route):
    """Route on which weights go down a tree: the root sends them to `fanout` ranks, each of which passes them on to as many.

    `passing`: the readers that are in the tree, in its order. All other readers get the weights from the root.
    """

    passing: Sequence[int]
    fanout: int

    def down(self, rank: int) -> int:
        """Return the rank from which `rank` gets the weights. In a round without some readers it may be the root instead."""
        place = self._place(rank)
        return self.root if place is None or place < self.fanout else self.passing[place // self.fanout - 1]

    def heirs(self, rank: int) -> tuple[int, ...]:
        """Return the ranks to which `rank` sends the weights, or passes them on."""
        if rank == self.root:
            return (*self.passing[: self.fanout], *(rank for rank in self.readers if rank not in self.passing))
        place = self._place(rank)
        return () if place is None else tuple(self.passing[self.fanout * (place + 1) : self.fanout * (place + 2)])

    def behind(self, rank: int) -> frozenset[int]:
        """Return the readers to which weights come by way of the reader `rank`."""
        found, ahead = set[int](), list(self.heirs(rank))
        while ahead:
            found.add(heir := ahead.pop())
            ahead += self.heirs(heir)
        return frozenset(found)

    def sends(self, readers: Collection[int]) -> Sends:
        """Return the ranks to which the root sends the weights, so that they reach those of `readers` that the route names.

        A rank passes weights on only if `readers` has all ranks below it. Otherwise the root sends to the ranks below it itself.
        """
        whole: dict[int, bool] = {}
        for rank in reversed(self.passing):  # heirs come behind their rank
            whole[rank] = rank in readers and all(whole[heir] for heir in self.heirs(rank))
        passed_on, used, ahead = list[int](), list[int](), list(self.heirs(self.root))
        while ahead:
            heirs = self.heirs(rank := ahead.pop())
            if whole.get(rank) and heirs:
                passed_on.append(rank)
            else:
                used += [rank] if rank in readers else []
                ahead += heirs
        return Sends(tuple(sorted(passed_on)), tuple(sorted(used)))

    def _place(self, rank: int) -> int | None:
        return self.passing.index(rank) if rank in self.passing else None


def star(layout: Layout, plan: Plan) -> tuple[Route, ...]:
    """Return the routes of a star, by group: every worker sends to the master, and the master sends to every reader."""
    return tuple(Route(MASTER, layout.readers) for _ in plan.groups)


def star_with_tree(layout: Layout, plan: Plan) -> tuple[Route, ...]:
    """Return the routes of a star whose weights go down a tree of the workers. Spares get theirs from the master.

    So no worker depends on a spare, the silence of which nobody would notice.
    """
    return (PassedOnRoute(MASTER, layout.readers, layout.computing, _FANOUT),) * len(plan.groups)


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
    return tuple(CopiedRoute(layout.first, layout.computing) for _ in plan.groups)


_GROUPS_A_ROOT = 4
_LEAST_GROUP_BYTES = 1 << 16

_FANOUT = 2
_STAR, _STAR_WITH_TREE, _GATHER = "star", "star:down=tree", "gather"

_TOPOLOGIES = {_STAR: star, _STAR_WITH_TREE: star_with_tree, "mesh": mesh, _GATHER: gather}


def routes_of(layout: Layout, plan: Plan, topology: str = "star") -> tuple[Route, ...]:
    """Return the routes of a job under the setting `topology`, by group. Every rank computes the same routes."""
    return _TOPOLOGIES[topology](layout, plan)


def is_central(topology: str) -> bool:
    """Return True if the master is the root of all groups."""
    return topology in (_STAR, _STAR_WITH_TREE)


def is_plain(topology: str) -> bool:
    """Return True if all gradients go straight to the master, and all weights come straight from it."""
    return topology == _STAR


def passed_on(routes: Sequence[Route]) -> bool:
    """Return True if workers pass weights on to others."""
    return any(isinstance(route, PassedOnRoute) for route in routes)


def sent_by_master(topology: str, workers: int) -> int:
    """Return the number of coded sets of weights that leave the master in a step of `workers` workers; 0 if it has none."""
    return min(workers, {_STAR: workers, _STAR_WITH_TREE: _FANOUT}.get(topology, 0))


def are_parts(topology: str) -> bool:
    """Return True if there are several roots, each with a part of the weights; otherwise each root updates all of them."""
    return not is_central(topology) and topology != _GATHER


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
    """Raise ConfigurationError unless all ranks exchange frames with the master alone, which is all that `program` knows."""
    if not is_plain(config.topology):
        raise ConfigurationError(f"{program} knows --topology star alone")


def require_straight(config: Config, program: str) -> None:
    """Raise ConfigurationError if workers pass weights on, and `program` would take these bytes for their own."""
    if is_central(config.topology) and not is_plain(config.topology):
        raise ConfigurationError(f"{program} counts passed-on bytes twice: leave out --topology {config.topology}")


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
        _refuse_to_pass_on(config)
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


def _refuse_to_pass_on(config: Config) -> None:
    """Raise ConfigurationError if workers would pass on weights that not all of them are to get."""
    if is_plain(config.topology):
        return
    reasons = {
        "--consistency": (
            not waits_for_all(config), "other than bsp lets workers lag, on which those behind them would wait"
        ),
        "--plan auto": (config.plan == BY_TRIAL, "measures steps in which rank 0 sends the weights to all workers"),
    }  # fmt: skip
    for setting, (given, reason) in reasons.items():
        if given:
            raise ConfigurationError(f"{setting} {reason}, under --topology {config.topology}: use --topology {_STAR}")
