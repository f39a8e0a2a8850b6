"""Routes as lines of text: for every root the senders and readers of its groups, and for every rank its bytes in a step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from psnode.config.amounts import amount, counted
from psnode.jobs.planning.routing.link_loads import LinkLoad, link_loads
from psnode.jobs.planning.routing.routed_groups import RoutedGroups
from psnode.plans.roles import MASTER

_MOST_NAMED = 8  # maximum number of a root's groups that are named
_HEAD = f"{'':14}{'weights':>10}{'gradients in':>14}{'weights in':>12}{'gradients out':>15}{'weights out':>13}"


def loads_of(groups: RoutedGroups) -> list[LinkLoad]:
    """Return the loads of all ranks in a step. See psnode.jobs.planning.routing.link_loads."""
    costs = groups.costs.groups
    return link_loads(
        groups.routes, groups.layout.computing, sizes=groups.sizes, ups=[group.up for group in costs],
        downs=[group.down for group in costs],
    )  # fmt: skip


def title_of(groups: RoutedGroups, name: str, topology: str) -> str:
    """Return the line above the picture of a scheme's routes. `name`: the name of the scheme.

    It defines u as the bytes of a worker's gradient, and v as the bytes of the weights that a worker gets.
    """
    costs, workers = groups.costs.groups, counted(groups.layout.workers, "worker")
    up, down = amount(sum(group.up for group in costs)), amount(sum(group.down for group in costs))
    return f"{name}, --topology {topology}: {workers}, {counted(len(costs), 'group')}; u = {up}, v = {down}"


def route_lines(groups: RoutedGroups, name: str, topology: str) -> list[str]:
    """Return an empty line, a title, a line for each root with the senders and readers of its groups, and a table of ranks."""
    found = ["", title_of(groups, name, topology)]
    loads, senders = loads_of(groups), ranks_text(groups.layout.computing)
    for load in loads:
        readers = sorted({reader for group in load.groups for reader in groups.routes[group].of_root(load.rank).readers})
        if load.groups:
            way = f"gradients of {senders} to {role_of(load.rank)}, weights to {ranks_text(readers)}"
            found.append(f"  {groups_text(load.groups)}: {way}")
    found += ["", _HEAD]
    whole = sum(groups.sizes)
    for load in loads:
        columns = (load.gradients_in, load.weights_in, load.gradients_out, load.weights_out)
        numbers = "".join(f"{amount(n):>{width}}" for n, width in zip(columns, (14, 12, 15, 13), strict=True))
        found.append(f"  {role_of(load.rank):12}{share_text(load.coordinates, whole):>10}{numbers}")
    busiest = max(loads, key=lambda load: max(load.received, load.sent))
    found.append(f"-> the busiest link is that of {role_of(busiest.rank)}: {busy_text(busiest)}")
    return found


def busy_text(load: LinkLoad) -> str:
    """Return a text with the bytes on a link in both directions."""
    return f"{amount(load.received)} in and {amount(load.sent)} out in a step"


def role_of(rank: int) -> str:
    """Return a rank and its role as text."""
    return "the master" if rank == MASTER else f"rank {rank}"


def share_text(coordinates: int, whole: int) -> str:
    """Return the share of the weights that a rank updates, as text."""
    return f"{100 * coordinates / max(whole, 1):.1f} %"


def groups_text(groups: Sequence[int]) -> str:
    """Return the numbers of groups as text. If there are many, only the first ones are named."""
    if len(groups) > _MOST_NAMED:
        return f"groups {', '.join(map(str, groups[:_MOST_NAMED]))} and {len(groups) - _MOST_NAMED} more"
    return f"group{'s' if len(groups) > 1 else ''} {', '.join(map(str, groups))}"


def ranks_text(ranks: Iterable[int]) -> str:
    """Return ascending ranks as text, in which consecutive ranks form a range, as in "ranks 1-4, 7"."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    parts = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    several = len(runs) != 1 or len(runs[0]) > 1
    return f"rank{'s' if several else ''} {', '.join(parts)}"
