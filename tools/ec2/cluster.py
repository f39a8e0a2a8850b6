"""Clusters by tags: the nodes that carry them, in order, as EC2 knows them at this moment."""

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

CLUSTER, OWNER, ROLE, LAUNCH, HOURS = "psnode:cluster", "psnode:owner", "psnode:role", "psnode:launch", "psnode:hours"
LIMIT = "psnode:spot-price"
LIVE = ("pending", "running", "stopping", "stopped")
ENDED = ("shutting-down", "terminated")


@dataclass(frozen=True)
class Node:
    """An instance. `name` is worker-0, worker-1, ... in the order of addresses, or master; `launched` is in UTC."""

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
    reason: str  # why EC2 ended it, if it did
    launch: str = ""  # the id of the launch that started it
    key: str = ""  # the name of the key pair that it lets in
    volumes: tuple[str, ...] = ()  # the ids of those that end with it
    hours: int = 0  # after which it ends itself; 0: never, or not known
    limit: float = 0.0  # the most that an hour of a spot instance costs, in USD; 0: its price on demand

    @property
    def ends(self) -> datetime.datetime | None:
        """The moment at which it ends itself, in UTC."""
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
    """The tags `name` and `owner`, and the resources that carry them."""

    cloud: Cloud
    name: str
    owner: str

    @property
    def title(self) -> str:
        """The name of its security group, placement group and key pair."""
        return f"psnode-{self.name}-{self.owner}"

    def filters(self) -> list[dict[str, Any]]:
        """Filters that find the cluster's own among all resources of the account."""
        return [{"Name": f"tag:{CLUSTER}", "Values": [self.name]}, {"Name": f"tag:{OWNER}", "Values": [self.owner]}]

    def tags(self, *kinds: str, launch: str, role: str = "", hours: int = 0, limit: str = "") -> list[dict[str, Any]]:
        """TagSpecifications for a resource of each of `kinds`, made by `launch`: a resource never exists without its tags."""
        tags = {"Name": f"psnode-{self.name}{'-' + role if role else ''}", CLUSTER: self.name, OWNER: self.owner, LAUNCH: launch}
        tags |= {key: value for key, value in ((ROLE, role), (HOURS, str(hours or "")), (LIMIT, limit)) if value}
        pairs = [{"Key": key, "Value": value} for key, value in tags.items()]
        return [{"ResourceType": kind, "Tags": pairs} for kind in kinds]

    def owns(self, resource: Mapping[str, Any]) -> bool:
        """That it carries both tags: checked again, whatever a filter let through."""
        tags = tags_of(resource)
        return tags.get(CLUSTER) == self.name and tags.get(OWNER) == self.owner

    def nodes(self, states: tuple[str, ...] = LIVE) -> list[Node]:
        """Instances in one of `states`, the master first, the workers by address."""
        filters = [*self.filters(), {"Name": "instance-state-name", "Values": list(states)}]
        found = self.cloud.ask("describe_instances", Filters=filters)
        instances = [instance for reservation in found.get("Reservations", []) for instance in reservation["Instances"]]
        instances.sort(key=_order)
        workers = iter(range(len(instances)))
        return [node_of(instance, workers) for instance in instances]

    def running(self) -> list[Node]:
        """The nodes that run, however few. Raises NoClusterError if there are none."""
        nodes = self.nodes()
        if not nodes:
            raise NoClusterError(f"cluster {self.name} of {self.owner} has no nodes: run launch")
        running = [node for node in nodes if node.state == "running"]
        if not running:
            raise NoClusterError(f"no node is running yet, {nodes[0].id} is {nodes[0].state}: run launch, which waits for them")
        return running

    def complete(self, n_workers: int) -> list[Node]:
        """The master and `n_workers` workers, all running. Raises NoClusterError."""
        nodes = self.running()
        if len(nodes) != n_workers + 1 or [node.role for node in nodes].count("master") != 1:
            raise NoClusterError(
                f"{len(nodes)} of {n_workers + 1} nodes are running: run launch to complete the cluster, then setup"
            )
        return nodes


def cluster_of(cloud: Cloud, settings: Settings) -> Cluster:
    """The cluster that the settings name; its owner is who the credentials belong to, unless they say another."""
    owner = settings.owner or owner_of(cloud.ask("get_caller_identity", service="sts")["Arn"])
    return Cluster(cloud, settings.name, owner)


def owner_of(arn: str) -> str:
    """Owner of the credentials with this ARN, the same for all of his commands; unique within an account.

    A user's name, or role-NAME: a role's sessions are called anew by every log-in, except by those of IAM Identity Center, which
    gives everybody the same roles and calls a session by its user.
    """
    kind, *names = arn.rsplit(":", 1)[-1].split("/")
    if kind != "assumed-role" or names[0].startswith("AWSReservedSSO_"):
        return names[-1] if names else kind  # root has no name
    return f"role-{names[0]}"


def tags_of(resource: Mapping[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in resource.get("Tags", [])}


def _order(instance: Mapping[str, Any]) -> tuple[bool, int, str]:
    address = int(ipaddress.ip_address(instance.get("PrivateIpAddress") or "255.255.255.255"))
    return tags_of(instance).get(ROLE) != "master", address, instance["InstanceId"]


def node_of(instance: Mapping[str, Any], workers: Iterator[int]) -> Node:
    """The node that EC2 describes so; `workers` counts those that are not the master."""
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
