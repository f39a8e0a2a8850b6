"""The wait at the end of a launch until the cluster is complete, and agreement with concurrent launches of the same cluster."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from psnode_ec2.cloud import progress
from psnode_ec2.cluster import ENDED, LIVE, Cluster, Node, counted
from psnode_ec2.ec2_errors import DeadlineError, NodeLostError, OthersError, SettingsError
from psnode_ec2.settings import Settings
from psnode_ec2.shutdown import end_nodes

_TURNS = 6  # looks before this launch gives up, so that a later launch can end its surplus


def wait(cluster: Cluster, settings: Settings, launch: str, started: set[str], known: Collection[str]) -> list[Node]:
    """Return the nodes once the cluster is complete and all of them run. `known`: ids of the nodes that the plan counted.

    If two launches have started the same missing nodes, the later launch ends its own nodes. Raises NodeLostError if one of
    `started` ends, OthersError if a node of another launch ends, SettingsError if the cluster has become larger than the
    settings allow, and DeadlineError.
    """
    cloud, wanted = cluster.cloud, {"master": 1, "worker": settings.n_workers}
    deadline, seen, crowded = cloud.clock() + settings.launch_deadline, set(known), 0
    for attempt in range(10**6):
        nodes = cluster.nodes(LIVE + ENDED)
        _none_lost(nodes, started, seen)
        nodes = [node for node in nodes if node.state in LIVE]
        seen |= {node.id for node in nodes}
        counts = {role: sum(node.role == role for node in nodes) for role in wanted}
        if counts == wanted and all(node.state == "running" for node in nodes):
            return nodes
        crowded = crowded + 1 if any(counts[role] > wanted[role] for role in wanted) else 0
        if surplus := end_superfluous(cluster, nodes, launch, settings.n_workers, started):
            seen -= surplus
            continue
        if crowded > _TURNS:
            raise SettingsError(_too_large(counts, settings))
        if cloud.clock() > deadline:
            break
        progress(f"waiting: {sum(node.state == 'running' for node in nodes)} of {settings.n_workers + 1} nodes are running")
        cloud.pause(attempt, first=2.0, longest=15.0)
    raise DeadlineError(f"not all nodes were running after {settings.launch_deadline} s: status shows them, launch goes on")


def end_superfluous(cluster: Cluster, nodes: Sequence[Node], launch: str, n_workers: int, started: set[str]) -> set[str]:
    """End the nodes of this launch that exceed the settings, remove them from `started`, and return their ids."""
    surplus = set(superfluous(nodes, launch, n_workers))
    if surplus:
        progress(f"another launch has started the same: ending {', '.join(sorted(surplus))} again")
        started -= surplus
        end_nodes(cluster, surplus)
    return surplus


def superfluous(nodes: Sequence[Node], launch: str, n_workers: int) -> list[str]:
    """Return the ids of this launch's nodes that exceed the settings when the nodes of earlier launches count first.

    Launches are ordered by their first nodes. All launches see the same order, so of two launches only one ends its nodes.
    """
    first: dict[str, tuple[object, str]] = {}
    for node in nodes:
        first[node.launch] = min(first.get(node.launch, (node.launched, node.launch)), (node.launched, node.launch))
    found = []
    for role, wanted in (("master", 1), ("worker", n_workers)):
        own = [node.id for node in nodes if node.launch == launch and node.role == role]
        before = sum(node.role == role and own != [] and first[node.launch] < first[launch] for node in nodes)
        found += sorted(own)[max(0, wanted - before) :]
    return found


def _none_lost(nodes: Sequence[Node], started: set[str], seen: set[str]) -> None:
    ended = {node.id: node.reason or "no reason given" for node in nodes if node.state in ENDED}
    if lost := sorted(started & ended.keys()):
        raise NodeLostError(lost[0], ended[lost[0]])
    if lost := sorted(seen & ended.keys()):
        raise OthersError(f"{lost[0]}, which this launch has not started, was ended ({ended[lost[0]]})")


def _too_large(counts: dict[str, int], settings: Settings) -> str:
    if counts["master"] > 1:
        return f"the cluster has {counts['master']} masters: end one in the console, or run shutdown"
    return (
        f"another launch has brought the cluster to {counted(counts['worker'], 'worker')}, and n_workers is "
        f"{settings.n_workers}: set it to {counts['worker']}, or run shutdown first"
    )
