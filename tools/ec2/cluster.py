"""Clusters, found by their tags, and their nodes with the order and state that EC2 shows now."""

from __future__ import annotations

import datetime
import ipaddress
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from psnode_ec2.cloud import Cloud
from psnode_ec2.ec2_errors import NoClusterError
from psnode_ec2.settings import Settings
from psnode_ec2.tags import CLUSTER, HOURS, LAUNCH, LIMIT, OWNER, ROLE, tags_for, tags_of

LIVE = ("pending", "running", "stopping", "stopped")
ENDED = ("shutting-down", "terminated")


def counted(number: int, noun: str) -> str:
    """Return `number` as text, followed by the noun in the singular or plural."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


@dataclass(frozen=True)
class Node:
    """An EC2 instance of a cluster.

    `name`: master, or worker-0, worker-1, ... in the order of addresses. `launched`: the start, in UTC.
    """

    name: str
    role: str
    id: str
    type: str
    zone: str
    state: str
    spot: bool
    private_address: str
    public_address: str
    launched: datetime.datetime
    reason: str  # EC2's code for the end of the instance, if it has ended
    launch: str = ""  # the id of the launch that started the node
    key: str = ""  # the name of the key pair whose key the node accepts
    volumes: tuple[str, ...] = ()  # the ids of the volumes that end with the node
    hours: int = 0  # hours from its start until the node ends itself; 0: never, or not known
    limit: float = 0.0  # the highest price of a spot instance in USD per hour; 0: the on-demand price

    @property
    def ends(self) -> datetime.datetime | None:
        """The time at which the node ends itself, in UTC; None if it never does, or if the time is unknown."""
        return self.launched + datetime.timedelta(hours=self.hours) if self.hours else None

    def __str__(self) -> str:
        bought = "spot" if self.spot else "on-demand"
        reason = f"  {self.reason}" if self.state in ENDED and self.reason else ""
        if self.state in LIVE and self.ends:
            reason = f"  ends itself {self.ends:%Y-%m-%d %H:%M} UTC"
        return (
            f"{self.name:11} {self.id:19} {self.type:12} {self.zone:15} {bought:9} {self.state:13}"
            f" {self.private_address:15} {self.public_address:15}{reason}".rstrip()
        )

    def address(self, connect: str) -> str:
        return self.public_address if connect == "public" else self.private_address


@dataclass(frozen=True)
class Cluster:
    """A cluster, known by the tags that hold its `name` and `owner`, and the resources that carry these tags."""

    cloud: Cloud
    name: str
    owner: str

    @property
    def title(self) -> str:
        """The name of the cluster's security group and placement group, and the beginning of its key pairs' names."""
        return f"psnode-{self.name}-{self.owner}"

    def filters(self) -> list[dict[str, Any]]:
        """Return the filters that find the cluster's resources among all resources of the account."""
        return [{"Name": f"tag:{CLUSTER}", "Values": [self.name]}, {"Name": f"tag:{OWNER}", "Values": [self.owner]}]

    def tags(self, *kinds: str, launch: str, role: str = "", hours: int = 0, limit: str = "") -> list[dict[str, Any]]:
        """Return TagSpecifications for resources of `kinds` that `launch` makes.

        A resource is made with its tags, since it could not be found without them.
        """
        pairs = tags_for(self.name, self.owner, launch, role=role, hours=hours, limit=limit)
        return [{"ResourceType": kind, "Tags": pairs} for kind in kinds]

    def owns(self, resource: Mapping[str, Any]) -> bool:
        """Return True if `resource` carries the tags of this cluster's name and owner.

        The check does not rely on EC2's filters.
        """
        tags = tags_of(resource)
        return tags.get(CLUSTER) == self.name and tags.get(OWNER) == self.owner

    def nodes(self, states: tuple[str, ...] = LIVE) -> list[Node]:
        """Return the nodes in one of `states`: first the master, then the workers by address."""
        filters = [*self.filters(), {"Name": "instance-state-name", "Values": list(states)}]
        found = self.cloud.ask("describe_instances", Filters=filters)
        instances = [instance for reservation in found.get("Reservations", []) for instance in reservation["Instances"]]
        instances.sort(key=_order)
        workers = iter(range(len(instances)))
        return [node_of(instance, workers) for instance in instances]

    def running(self) -> list[Node]:
        """Return the running nodes, even if the cluster is incomplete. Raises NoClusterError if no node is running."""
        nodes = self.nodes()
        if not nodes:
            raise NoClusterError(f"cluster {self.name} of {self.owner} has no nodes: run launch")
        running = [node for node in nodes if node.state == "running"]
        if not running:
            raise NoClusterError(f"no node is running yet, {nodes[0].id} is {nodes[0].state}: run launch, which waits for them")
        return running

    def complete(self, n_workers: int) -> list[Node]:
        """Return the master and `n_workers` workers, which are all running.

        Raises NoClusterError if a node is missing or not running.
        """
        nodes = self.running()
        if len(nodes) != n_workers + 1 or [node.role for node in nodes].count("master") != 1:
            raise NoClusterError(
                f"{len(nodes)} of {n_workers + 1} nodes are running: run launch to complete the cluster, then setup"
            )
        return nodes


def cluster_of(cloud: Cloud, settings: Settings) -> Cluster:
    """Return the cluster that the settings name. By default its owner is the holder of the credentials."""
    owner = settings.owner or owner_of(cloud.ask("get_caller_identity", service="sts")["Arn"])
    return Cluster(cloud, settings.name, owner)


def owner_of(arn: str) -> str:
    """Return the owner of the credentials with this ARN.

    The owner is the same for all commands of a user, and unique within an account. For a user it is the user's name. For a role
    it is role-NAME, since every log-in gives the role's session a new name. In IAM Identity Center all users share the same
    roles, so the owner is the name of the session, which is that of the user.
    """
    kind, *names = arn.rsplit(":", 1)[-1].split("/")
    if kind != "assumed-role" or names[0].startswith("AWSReservedSSO_"):
        return names[-1] if names else kind  # root has no name
    return f"role-{names[0]}"


def _order(instance: Mapping[str, Any]) -> tuple[bool, int, str]:
    address = int(ipaddress.ip_address(instance.get("PrivateIpAddress") or "255.255.255.255"))
    return tags_of(instance).get(ROLE) != "master", address, instance["InstanceId"]


def node_of(instance: Mapping[str, Any], workers: Iterator[int]) -> Node:
    """Return the node for `instance`, a description by EC2. A worker takes its number from `workers`."""
    role = tags_of(instance).get(ROLE, "worker")
    return Node(
        name=role if role == "master" else f"worker-{next(workers)}",
        role=role,
        id=instance["InstanceId"],
        type=instance["InstanceType"],
        zone=instance.get("Placement", {}).get("AvailabilityZone", ""),
        state=instance["State"]["Name"],
        spot=instance.get("InstanceLifecycle") == "spot",
        private_address=instance.get("PrivateIpAddress", ""),
        public_address=instance.get("PublicIpAddress", ""),
        launched=instance["LaunchTime"],
        reason=(instance.get("StateReason") or {}).get("Code", ""),
        launch=tags_of(instance).get(LAUNCH, ""),
        key=instance.get("KeyName", ""),
        hours=int(hours) if (hours := tags_of(instance).get(HOURS, "")).isdecimal() else 0,
        limit=float(limit) if re.fullmatch(r"\d+(\.\d+)?", limit := tags_of(instance).get(LIMIT, "")) else 0.0,
        volumes=tuple(
            device["Ebs"]["VolumeId"]
            for device in instance.get("BlockDeviceMappings", [])
            if device.get("Ebs", {}).get("DeleteOnTermination")
        ),
    )
