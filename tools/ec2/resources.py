"""Resources of a cluster other than its nodes and keys: a security group, a placement group, and volumes."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from psnode_ec2.cloud import Cloud
from psnode_ec2.cluster import Cluster, Node
from psnode_ec2.ec2_errors import AlreadyThereError, Ec2Error, SettingsError
from psnode_ec2.settings import Settings

_OWN_ADDRESS = "https://checkip.amazonaws.com"  # answers with the address from which the request came
_MOST_VALUES = 200  # maximum values of one filter


def ensure_firewall(cluster: Cluster, settings: Settings, vpc: str, ssh_from: str, launch: str) -> str:
    """Return the id of the cluster's security group, made if missing.

    The group admits port 22 from `ssh_from`, and all traffic between its members.
    """

    def found() -> str | None:
        filters = [*cluster.filters(), {"Name": "vpc-id", "Values": [vpc]}]
        groups = cluster.cloud.ask("describe_security_groups", Filters=filters)["SecurityGroups"]
        return groups[0]["GroupId"] if groups else None

    def make() -> None:
        text = f"psnode cluster {cluster.name}: ssh from its owner, all traffic among its nodes"
        tags = cluster.tags("security-group", launch=launch)
        cluster.cloud.change(
            "create_security_group", GroupName=cluster.title, Description=text, VpcId=vpc, TagSpecifications=tags
        )

    group = ensure(cluster, "security group", found, make)
    _settle_rules(cluster, settings, group, ssh_from)
    return group


def let_in(cluster: Cluster, settings: Settings, ssh_from: str) -> None:
    """Let only `ssh_from` reach the cluster's nodes by ssh, since the owner's address may have changed.

    Nothing is done if the cluster has no security group.
    """
    for group in cluster.cloud.ask("describe_security_groups", Filters=cluster.filters())["SecurityGroups"]:
        if cluster.owns(group):
            _settle_rules(cluster, settings, group["GroupId"], ssh_from)


def _settle_rules(cluster: Cluster, settings: Settings, group: str, ssh_from: str) -> None:
    """Bring the group's ingress rules to the required ones: remove superfluous rules and add missing ones."""
    cloud = cluster.cloud
    new = cloud.dry_run and group.startswith("(")
    there = {} if new else cloud.ask("describe_security_groups", GroupIds=[group])["SecurityGroups"][0]
    now = _rules(there.get("IpPermissions", []))
    family = "Ipv6Ranges" if ":" in ssh_from else "IpRanges"
    wanted = {("tcp", 22, 22, family, ssh_from), ("-1", -1, -1, "UserIdGroupPairs", group)}
    for call, rules in (("revoke_security_group_ingress", now - wanted), ("authorize_security_group_ingress", wanted - now)):
        if rules:
            try:
                cloud.change_shown(call, GroupId=group, IpPermissions=[_permission(*rule) for rule in sorted(rules)])
            except AlreadyThereError:  # added at the same time by another launch of the cluster
                continue
    # a new group has a rule that lets all traffic out; EFA also needs an egress rule that names the group
    members = ("-1", -1, -1, "UserIdGroupPairs", group)
    if settings.efa and members not in _rules(there.get("IpPermissionsEgress", [])):
        with contextlib.suppress(AlreadyThereError):
            cloud.change_shown("authorize_security_group_egress", GroupId=group, IpPermissions=[_permission(*members)])


def _rules(permissions: Sequence[dict[str, Any]]) -> set[tuple[str, int, int, str, str]]:
    keys = {"IpRanges": "CidrIp", "Ipv6Ranges": "CidrIpv6", "UserIdGroupPairs": "GroupId"}
    return {
        (each["IpProtocol"], each.get("FromPort", -1), each.get("ToPort", -1), family, member[key])
        for each in permissions
        for family, key in keys.items()
        for member in each.get(family, [])
    }


def _permission(protocol: str, first: int, last: int, family: str, value: str) -> dict[str, Any]:
    key = {"IpRanges": "CidrIp", "Ipv6Ranges": "CidrIpv6", "UserIdGroupPairs": "GroupId"}[family]
    ports = {} if protocol == "-1" else {"FromPort": first, "ToPort": last}
    return {"IpProtocol": protocol, **ports, family: [{key: value}]}


def ensure_placement(cluster: Cluster, launch: str) -> str:
    """Return the name of the cluster's placement group, made if missing.

    AWS puts the instances of such a group on one fast network.
    """

    def found() -> str | None:
        groups = cluster.cloud.ask("describe_placement_groups", Filters=cluster.filters())["PlacementGroups"]
        return next((group["GroupName"] for group in groups if group["State"] in ("pending", "available")), None)

    def make() -> None:
        tags = cluster.tags("placement-group", launch=launch)
        cluster.cloud.change("create_placement_group", GroupName=cluster.title, Strategy="cluster", TagSpecifications=tags)

    return ensure(cluster, "placement group", found, make)


def ensure(cluster: Cluster, kind: str, found: Callable[[], str | None], make: Callable[[], None]) -> str:
    """Return the name or id of a resource of `kind`, which `found` looks up and `make` makes if it is missing.

    Raises SettingsError if a resource of the same name lacks this cluster's tags.
    """
    if (there := found()) is not None:
        return there
    taken = False
    for attempt in range(6):
        try:
            make()
        except AlreadyThereError:
            taken = True
        if (there := found()) is not None:
            return there
        if cluster.cloud.dry_run:
            return f"({kind})"
        if taken and attempt:
            raise SettingsError(f"there is a {kind} {cluster.title} without this cluster's tags: choose another name")
        cluster.cloud.pause(attempt)  # EC2 may not show a new group immediately
    raise Ec2Error(f"EC2 made the {kind} {cluster.title} but does not show it: run the command again")


def own_range(cloud: Cloud, settings: Settings) -> str:
    """Return the range of addresses that may reach port 22: ssh_from or, if it is auto, this machine's public address.

    Raises SettingsError if this address cannot be found out.
    """
    if settings.ssh_from != "auto":
        return str(ipaddress.ip_network(settings.ssh_from))  # convert to EC2's notation
    if cloud.dry_run:
        cloud.tell(f"call {_OWN_ADDRESS}")
    try:
        with urllib.request.urlopen(_OWN_ADDRESS, timeout=10) as answer:
            address = ipaddress.ip_address(answer.read(64).decode("ascii").strip())
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"this machine's public address cannot be found out ({error}): set ssh_from to it, as in 203.0.113.7/32"
        ) from None
    return f"{address}/{address.max_prefixlen}"


@dataclass(frozen=True)
class Volume:
    """An EBS volume.

    `node`: the id of the instance to which it is attached, or "". `stays`: True if it remains when this instance ends.
    """

    id: str
    kind: str  # gp3, io2, ...
    gib: int
    node: str
    stays: bool
    created: datetime.datetime


def volumes_of(cluster: Cluster, nodes: Sequence[Node]) -> list[Volume]:
    """Return the volumes of the cluster and those attached to `nodes`, sorted by id, except volumes that are being deleted."""
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
