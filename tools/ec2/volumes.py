"""The volumes of a cluster: those that carry its tags, and those that hang on its nodes."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from psnode_ec2.cluster import Cluster, Node

_MOST_VALUES = 200  # in a filter


@dataclass(frozen=True)
class Volume:
    """An EBS volume. `node` is the instance that it hangs on, if any; `stays`: it does not end with that."""

    id: str
    kind: str  # gp3, io2, ...
    gib: int
    node: str
    stays: bool
    created: datetime.datetime


def volumes_of(cluster: Cluster, nodes: Sequence[Node]) -> list[Volume]:
    """All of them, sorted by id, without those that are being deleted."""
    names = [node.id for node in nodes]
    parts = [names[first : first + _MOST_VALUES] for first in range(0, len(names), _MOST_VALUES)]
    filters = [cluster.filters(), *([{"Name": "attachment.instance-id", "Values": part}] for part in parts)]
    found = {
        each["VolumeId"]: each
        for rules in filters
        for each in cluster.cloud.ask("describe_volumes", Filters=rules)["Volumes"]
        if each.get("State") not in ("deleting", "deleted")
    }
    made, end = [], {name for node in nodes for name in node.volumes}
    for name, each in sorted(found.items()):
        held: dict[str, Any] = next(iter(each.get("Attachments", [])), {})
        stays = name not in end and not held.get("DeleteOnTermination", False)
        made.append(Volume(name, each["VolumeType"], each["Size"], held.get("InstanceId", ""), stays, each["CreateTime"]))
    return made
