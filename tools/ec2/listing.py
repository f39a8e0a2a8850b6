"""All clusters of this tool in an account, whoever owns them, in every region that answers."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from psnode_ec2.cloud import Cloud
from psnode_ec2.cluster import CLUSTER, LIVE, OWNER, node_of, tags_of
from psnode_ec2.elsewhere import over_regions
from psnode_ec2.ends import first_end
from psnode_ec2.errors import Ec2Error


@dataclass(frozen=True)
class Listed:
    """A cluster with live nodes: their number by state and by type, the first start and the first end, in UTC."""

    region: str
    cluster: str
    owner: str
    nodes: int
    states: dict[str, int]
    types: dict[str, int]
    since: datetime.datetime
    ends: datetime.datetime | None

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} {name}" for name, count in sorted(self.types.items()))
        states = ", ".join(f"{count} {name}" for name, count in sorted(self.states.items()))
        end = f"  ends itself {self.ends:%Y-%m-%d %H:%M} UTC" if self.ends else "  never ends itself"
        since = f"since {self.since:%Y-%m-%d %H:%M} UTC"
        return f"{self.region:15} {self.cluster:15} {self.owner:15} {kinds:24} {states:12} {since}{end}"

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def clusters(cloud: Cloud) -> tuple[list[Listed], list[str]]:
    """Them in order of region, name and owner; and a line for each region that could not be asked."""
    found, failed = list[Listed](), list[str]()
    for part in over_regions(cloud, _in_region):
        if isinstance(part, str):
            failed.append(part)
        else:
            found += part
    return sorted(found, key=lambda each: (each.region, each.cluster, each.owner)), failed


def _in_region(cloud: Cloud) -> list[Listed] | str:
    filters = [{"Name": "tag-key", "Values": [CLUSTER]}, {"Name": "instance-state-name", "Values": list(LIVE)}]
    try:
        answer = cloud.ask("describe_instances", Filters=filters)
    except Ec2Error as error:
        return f"region {cloud.region} cannot be asked: {error}"
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for held in answer.get("Reservations", []):
        for instance in held["Instances"]:
            tags = tags_of(instance)
            groups.setdefault((tags.get(CLUSTER, ""), tags.get(OWNER, "")), []).append(instance)
    return [_listed(cloud.region, *names, instances) for names, instances in groups.items()]


def _listed(region: str, name: str, owner: str, instances: Sequence[Mapping[str, Any]]) -> Listed:
    nodes = [node_of(instance, iter(range(len(instances)))) for instance in instances]
    states, types = Counter(node.state for node in nodes), Counter(node.type for node in nodes)
    return Listed(
        region,
        name,
        owner or "nobody",
        len(nodes),
        dict(states),
        dict(types),
        min(node.launched for node in nodes),
        first_end(nodes),
    )
