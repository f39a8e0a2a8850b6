"""Volumes of a cluster, with answers of EC2 that moto does not give."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from psnode_ec2.cloud import Cloud
from psnode_ec2.cluster import Cluster, Node
from psnode_ec2.resources import volumes_of
from psnode_ec2.settings import Settings

pytest.importorskip("botocore")

START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


class Client:
    """A client that answers describe_volumes; like EC2, it takes at most 200 values in a filter."""

    def __init__(self, volumes: list[dict[str, Any]]) -> None:
        self.volumes = volumes

    def can_paginate(self, operation: str) -> bool:
        return False

    def describe_volumes(self, Filters: list[dict[str, Any]]) -> dict[str, Any]:
        assert all(len(rule["Values"]) <= 200 for rule in Filters)
        if Filters[0]["Name"] != "attachment.instance-id":
            return {"Volumes": self.volumes}
        wanted = set(Filters[0]["Values"])
        return {"Volumes": [each for each in self.volumes if wanted & {held["InstanceId"] for held in each["Attachments"]}]}


def volume(name: str, node: str, state: str = "in-use", *, ends: bool = True) -> dict[str, Any]:
    held = [{"InstanceId": node, "DeleteOnTermination": ends}] if node else []
    return {"VolumeId": name, "VolumeType": "gp3", "Size": 50, "CreateTime": START, "State": state, "Attachments": held}


def cluster(volumes: list[dict[str, Any]]) -> Cluster:
    settings = Settings(name="demo")
    return Cluster(Cloud(settings, clients={"ec2": Client(volumes)}), "demo", "ada")


def node(name: str) -> Node:
    return Node(name, "worker", name, "m5.large", "us-west-2b", "running", False, "10.0.0.1", "", START, "")


def test_the_largest_cluster_is_asked_in_parts() -> None:
    names = [f"i-{number}" for number in range(256)]
    found = volumes_of(cluster([volume(f"vol-{name}", name) for name in names]), [node(name) for name in names])
    assert {each.node for each in found} == set(names)


def test_a_volume_that_ends_with_a_node_that_is_ending_does_not_outlive_it() -> None:
    found = volumes_of(
        cluster([volume("vol-1", "i-ending"), volume("vol-2", "i-ending", ends=False), volume("vol-3", "", "deleting")]), []
    )
    assert [(each.id, each.stays) for each in found] == [("vol-1", False), ("vol-2", True)]
