"""Shutdown: end what carries the cluster's tags, wait until it is gone, and remove what is left."""

from __future__ import annotations

import time
from collections.abc import Collection

from tools.ec2.cloud import progress
from tools.ec2.cluster import LIVE, Cluster
from tools.ec2.errors import DeadlineError
from tools.ec2.resources import remove_resources

_PATIENCE = 600.0  # seconds until a terminated instance must be gone


def shutdown(cluster: Cluster) -> list[str]:
    """End all nodes and remove the cluster's groups and key; returns what was removed. Confirming it is the caller's."""
    nodes = cluster.nodes()
    end_nodes(cluster, [node.id for node in nodes])
    return [f"{node.name} {node.id}" for node in nodes] + remove_resources(cluster)


def end_nodes(cluster: Cluster, ids: Collection[str]) -> None:
    """Terminate exactly these instances and wait until none of them is left; spot requests are one-time and end with them."""
    if not ids:
        return
    cluster.cloud.change_shown("terminate_instances", InstanceIds=sorted(ids))
    if cluster.cloud.dry_run:
        return
    end = time.monotonic() + _PATIENCE
    for attempt in range(10**6):
        left = [node for node in cluster.nodes((*LIVE, "shutting-down")) if node.id in ids]
        if not left:
            return
        if time.monotonic() > end:
            break
        progress(f"waiting until {len(left)} nodes are gone")
        cluster.cloud.pause(attempt, first=1.0, longest=15.0)
    raise DeadlineError(f"{len(left)} nodes are still ending after {_PATIENCE:g} s: run shutdown again to remove the rest")
