"""The rest that a shutdown leaves: nodes of the same name of other owners and in other regions, volumes that outlive theirs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from psnode_ec2.cloud import Cloud
from psnode_ec2.cluster import CLUSTER, LIVE, OWNER, Cluster, Node, tags_of
from psnode_ec2.errors import Ec2Error
from psnode_ec2.volumes import volumes_of

_AT_ONCE = 16  # regions

Result = TypeVar("Result")


def over_regions(cloud: Cloud, work: Callable[[Cloud], Result]) -> list[Result]:
    """`work` in the cloud's region, then in all others of the account, several at once. Raises Ec2Error if they are not known."""
    regions = [each["RegionName"] for each in cloud.ask("describe_regions")["Regions"]]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        others = pool.map(lambda region: work(cloud.in_region(region)), sorted(set(regions) - {cloud.region}))
        return [work(cloud), *others]


def other_nodes(cluster: Cluster) -> list[str]:
    """A line for each other owner and region with nodes of clusters of this name, and for each that could not be asked."""
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
        f"cluster {cluster.name} of owner {owner or 'nobody'} has {count} nodes in {cloud.region}, which go on and cost: "
        f"shutdown --owner {owner or '...'} --region {cloud.region} ends them"
        for owner, count in sorted(owners.items())
    ]


def lasting_volumes(cluster: Cluster, nodes: Sequence[Node]) -> list[str]:
    """A line for each volume that does not end with its node, and for those that hang on none."""
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
