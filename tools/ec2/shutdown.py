"""End of a cluster by `shutdown` and `run --shutdown`: the user confirms it, and the newest checkpoint is fetched first."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import click

from psnode_ec2.cloud import progress
from psnode_ec2.cluster import LIVE, Cluster, Node, counted
from psnode_ec2.ec2_errors import DeadlineError, Ec2Error, InUseError, NoClusterError, NotShownError, OthersError
from psnode_ec2.fetch_checkpoint import keep
from psnode_ec2.flags import CommandContext
from psnode_ec2.kept_job_record import forget
from psnode_ec2.listing import lasting_volumes, other_nodes
from psnode_ec2.tags import LAUNCH, tags_of

_IN_USE = 24  # tries to remove a resource that is in use: about four minutes
_PATIENCE = 600.0  # maximum seconds until terminated instances are gone


class _Kind(NamedTuple):
    """A kind of resource: the calls that find and remove it, and keys in EC2's answers.

    `answer`: key of the list of resources. `key`, `name`: keys of a resource's id and name.
    """

    noun: str
    find: str
    answer: str
    remove: str
    key: str
    name: str


_PLACEMENT = "placement group"
_KINDS = (
    _Kind("security group", "describe_security_groups", "SecurityGroups", "delete_security_group", "GroupId", "GroupName"),
    _Kind(_PLACEMENT, "describe_placement_groups", "PlacementGroups", "delete_placement_group", "GroupName", "GroupName"),
    _Kind("key pair", "describe_key_pairs", "KeyPairs", "delete_key_pair", "KeyName", "KeyName"),
)


def ask(session: CommandContext, nodes: list[Node], *, discard: bool, when: str = "") -> None:
    """Ask the user to confirm the end of `nodes`. Raises DeclinedError if the user declines."""
    cluster = session.cluster
    session.confirm(
        f"{when}end {'this' if len(nodes) == 1 else 'these'} {counted(len(nodes), 'node')} of cluster {cluster.name}, "
        f"owner {cluster.owner}, with {'its' if len(nodes) == 1 else 'their'} volumes, and the cluster's groups"
        + (", and fetch no checkpoint" if discard else ", when the newest checkpoint was fetched from them")
    )


def close(session: CommandContext, nodes: list[Node], *, discard: bool) -> None:
    """End `nodes`, remove the cluster's resources, and remove the record of a job that is kept alive.

    Unless `discard`, the newest checkpoint is fetched first; raises KeepError if this fails. Raises OthersError if other nodes
    of the cluster were started in the meantime.
    """
    cluster = session.cluster
    session.note(nodes)
    if not session.cloud.dry_run:
        forget(session.settings)
    if not discard and (kept := keep(cluster, session.settings, nodes)):
        progress(kept)
    for gone in shutdown(cluster, nodes, placed=session.settings.placement_group):
        click.echo(gone if session.cloud.dry_run else f"removed {gone}")
    session.note([])
    if more := added_since(cluster, nodes):
        raise OthersError(f"{counted(more, 'node')} of this cluster started since then, at further cost: run shutdown again")


def close_all(session: CommandContext, *, discard: bool) -> None:
    """Show the user the nodes and the resources that stay, ask for confirmation, and end the nodes.

    Volumes that outlive the nodes stay, and so do nodes with the cluster's name in other regions or of other owners. Raises
    DeclinedError, KeepError, OthersError and NoClusterError.
    """
    cluster = session.cluster
    nodes, others = cluster.nodes(), other_nodes(cluster)
    for told in (*map(str, nodes), *lasting_volumes(cluster, nodes), *others):
        progress(told)
    ask(session, nodes, discard=discard)
    close(session, nodes, discard=discard)
    if others and not nodes:
        raise NoClusterError(f"cluster {cluster.name} of {cluster.owner} has no nodes in {session.cloud.region}; {others[0]}")


def shutdown(cluster: Cluster, shown: Sequence[Node] | None = None, *, placed: bool = True) -> list[str]:
    """End all nodes and remove the cluster's groups and keys, without asking the user. Return the removed names.

    `shown`: the nodes that the user has confirmed. If other nodes have been started in the meantime, they continue, and the
    groups stay. `placed`: True to remove a placement group too.
    """
    nodes = cluster.nodes() if shown is None else shown
    end_nodes(cluster, [node.id for node in nodes])
    gone = [f"{node.name} {node.id}" for node in nodes]
    return gone if added_since(cluster, nodes) else gone + remove_resources(cluster, placed=placed)


def added_since(cluster: Cluster, nodes: Sequence[Node]) -> int:
    """Return the number of the cluster's nodes that are not in `nodes`."""
    return len({node.id for node in cluster.nodes()} - {node.id for node in nodes})


def end_nodes(cluster: Cluster, ids: Collection[str]) -> None:
    """Terminate exactly the instances `ids`, and wait until all have ended. A one-time spot request ends with its instance."""
    if not ids:
        return
    cluster.cloud.change_shown("terminate_instances", InstanceIds=sorted(ids))
    if cluster.cloud.dry_run:
        return
    end = cluster.cloud.clock() + _PATIENCE
    for attempt in range(10**6):
        left = [node for node in cluster.nodes((*LIVE, "shutting-down")) if node.id in ids]
        if not left:
            return
        if cluster.cloud.clock() > end:
            break
        progress(f"waiting for the end of {counted(len(left), 'node')}")
        cluster.cloud.pause(attempt, first=1.0, longest=15.0)
    raise DeadlineError(f"{counted(len(left), 'node')} still ending after {_PATIENCE:g} s: run shutdown again to remove the rest")


def remove_resources(cluster: Cluster, launch: str | None = None, *, placed: bool = True) -> list[str]:
    """Remove the groups and key pairs of a cluster without nodes, and return the names of the removed resources.

    `launch`: if given, remove only resources that this launch made. `placed`: True to remove a placement group too. If a
    resource cannot be found or removed, the others are still removed, and the first error is raised at the end.
    """
    gone, failed = list[str](), list[Ec2Error]()
    for kind in _KINDS:
        if kind.noun == _PLACEMENT and not placed:
            continue
        try:
            found = cluster.cloud.ask(kind.find, Filters=cluster.filters())[kind.answer]
        except Ec2Error as error:
            failed.append(error)
            continue
        for each in found:
            lives = each.get("State", "available") in ("pending", "available")
            if lives and cluster.owns(each) and launch in (None, tags_of(each).get(LAUNCH)):
                try:
                    _remove(cluster, kind.remove, {kind.key: each[kind.key]})
                    gone.append(f"{kind.noun} {each[kind.name]}")
                except Ec2Error as error:
                    failed.append(error)
    if failed:
        raise failed[0]
    return gone


def _remove(cluster: Cluster, call: str, what: dict[str, str]) -> None:
    """Remove a resource; try again while it is in use. Network cards outlast their instances by some seconds."""
    for attempt in range(_IN_USE):
        try:
            cluster.cloud.change(call, **what)
        except NotShownError:
            return
        except InUseError:
            if attempt + 1 == _IN_USE:
                raise
            progress(f"waiting until nothing uses {' '.join(what.values())} any more")
            cluster.cloud.pause(attempt, first=1.0, longest=15.0)
        else:
            return
