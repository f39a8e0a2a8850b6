"""Clusters of an account in all regions, and notes for a shutdown on nodes and volumes that it does not end."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from psnode_ec2.cloud import Cloud
from psnode_ec2.cluster import LIVE, Cluster, Node, counted, node_of
from psnode_ec2.ec2_errors import Ec2Error
from psnode_ec2.end_times import first_end
from psnode_ec2.resources import volumes_of
from psnode_ec2.tags import CLUSTER, OWNER, tags_of

_AT_ONCE = 16  # simultaneous calls, one for each region
Result = TypeVar("Result")


@dataclass(frozen=True)
class Listed:
    """A cluster with live nodes: the numbers of nodes by state and by type, and the first start and first end in UTC."""

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
        """Return the fields for JSON."""
        return asdict(self)


def clusters(cloud: Cloud) -> tuple[list[Listed], list[str]]:
    """Return the clusters in all regions, sorted by region, name and owner, and a line for each region that did not answer."""
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


def over_regions(cloud: Cloud, work: Callable[[Cloud], Result]) -> list[Result]:
    """Apply `work` in all regions concurrently, and return the results. The cloud's own region comes first.

    Raises Ec2Error if the list of regions cannot be read.
    """
    regions = [each["RegionName"] for each in cloud.ask("describe_regions")["Regions"]]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        others = pool.map(lambda region: work(cloud.in_region(region)), sorted(set(regions) - {cloud.region}))
        return [work(cloud), *others]


def other_nodes(cluster: Cluster) -> list[str]:
    """Return lines about nodes of a cluster with this name that belong to other owners or run in other regions.

    Each owner has a line for each region with such nodes. A region that does not answer has a line too.
    """
    here = cluster.cloud.region

    def look(cloud: Cloud) -> list[str]:
        return _in(cloud, cluster, here=cloud.region == here)

    try:
        return [line for lines in over_regions(cluster.cloud, look) for line in lines]
    except Ec2Error as error:
        return [*look(cluster.cloud), f"other regions cannot be asked: {error}"]


def _in(cloud: Cloud, cluster: Cluster, *, here: bool) -> list[str]:
    filters = [{"Name": f"tag:{CLUSTER}", "Values": [cluster.name]}, {"Name": "instance-state-name", "Values": list(LIVE)}]
    try:
        found = cloud.ask("describe_instances", Filters=filters).get("Reservations", [])
    except Ec2Error as error:
        return [f"region {cloud.region} cannot be asked: {error}"]
    owners = Counter(tags_of(instance).get(OWNER, "") for held in found for instance in held["Instances"])
    if here:
        del owners[cluster.owner]
    return [
        f"cluster {cluster.name} {f'of owner {owner}' if owner else 'without an owner'} has {counted(count, 'node')} in "
        f"{cloud.region}, at further cost: "
        f"shutdown --owner {owner or '...'} --region {cloud.region} ends {'it' if count == 1 else 'them'}"
        for owner, count in sorted(owners.items())
    ]


def lasting_volumes(cluster: Cluster, nodes: Sequence[Node]) -> list[str]:
    """Return a line for each volume that remains when its node ends, or that is attached to no node."""
    names = {node.id: node.name for node in nodes}
    try:
        found = volumes_of(cluster, nodes)
    except Ec2Error as error:
        return [f"volumes cannot be asked: {error}"]
    return [
        f"volume {each.id} of {names.get(each.node, 'no node')}, {each.gib} GiB, does not end with the nodes, and costs: "
        f"aws ec2 delete-volume --region {cluster.cloud.region} --volume-id {each.id} ends it, with what it holds"
        for each in found
        if each.stays
    ]
