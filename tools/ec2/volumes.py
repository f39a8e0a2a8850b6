"""The volumes of a cluster: those that carry its tags, and those that hang on its nodes."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tools.ec2.cluster import Cluster, Node


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
    """All of them, sorted by id."""
    filters = [cluster.filters()]
    if nodes:
        filters.append([{"Name": "attachment.instance-id", "Values": [node.id for node in nodes]}])
    found = {
        each["VolumeId"]: each for rules in filters for each in cluster.cloud.ask("describe_volumes", Filters=rules)["Volumes"]
    }
    made, end = [], {name for node in nodes for name in node.volumes}
    for name, each in sorted(found.items()):
        held: dict[str, Any] = next(iter(each.get("Attachments", [])), {})
        made.append(
            Volume(name, each["VolumeType"], each["Size"], held.get("InstanceId", ""), name not in end, each["CreateTime"])
        )
    return made
