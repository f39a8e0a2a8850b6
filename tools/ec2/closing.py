"""The end of a cluster, as `shutdown` and `run --shutdown` bring it about: confirmed, the newest checkpoint fetched first."""

from __future__ import annotations

import click

from psnode_ec2.charge import forget
from psnode_ec2.cloud import progress
from psnode_ec2.cluster import Node
from psnode_ec2.elsewhere import lasting_volumes, other_nodes
from psnode_ec2.errors import NoClusterError, OthersError
from psnode_ec2.flags import Session
from psnode_ec2.keeping import keep
from psnode_ec2.removing import added_since, shutdown


def ask(session: Session, nodes: list[Node], *, discard: bool, when: str = "") -> None:
    """Let the user confirm the end of `nodes`. Raises DeclinedError."""
    cluster = session.cluster
    session.confirm(
        f"{when}end these {len(nodes)} nodes of cluster {cluster.name}, owner {cluster.owner}, with their volumes, and its groups"
        + (", and fetch no checkpoint" if discard else ", when the newest checkpoint was fetched from them")
    )


def close(session: Session, nodes: list[Node], *, discard: bool) -> None:
    """End `nodes` and remove the cluster's resources; a job that is kept alive is so no longer.

    Raises KeepError, and OthersError if others were started since.
    """
    cluster = session.cluster
    session.note(nodes)
    if not session.cloud.dry_run:
        forget(session.settings)
    if not discard and (kept := keep(cluster, session.settings, nodes)):
        progress(kept)
    for gone in shutdown(cluster, nodes):
        click.echo(gone if session.cloud.dry_run else f"removed {gone}")
    session.note([])
    if more := added_since(cluster, nodes):
        raise OthersError(f"{more} nodes of this cluster were started since, and go on and cost: run shutdown again")


def close_all(session: Session, *, discard: bool) -> None:
    """Show what will end and what goes on, ask, and end it. Raises DeclinedError, KeepError, OthersError, NoClusterError."""
    cluster = session.cluster
    nodes, others = cluster.nodes(), other_nodes(cluster)
    for told in (*map(str, nodes), *lasting_volumes(cluster, nodes), *others):
        progress(told)
    ask(session, nodes, discard=discard)
    close(session, nodes, discard=discard)
    if others and not nodes:
        raise NoClusterError(f"cluster {cluster.name} of {cluster.owner} has no nodes in {session.cloud.region}; {others[0]}")
