"""Messages that shutdown prints before it ends anything: nodes of the same name elsewhere, and volumes that outlive nodes."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def started(api: Any, config: Path, owner: str) -> str:
    """Start an instance of a cluster with the same name that belongs to `owner`, and return its id."""
    tags = {"psnode:cluster": tomllib.loads(config.read_text())["name"], "psnode:owner": owner, "psnode:role": "worker"}
    image = api.describe_images(Filters=[{"Name": "name", "Values": ["ubuntu/*"]}])["Images"][0]["ImageId"]
    pairs = [{"Key": key, "Value": value} for key, value in tags.items()]
    made = api.run_instances(
        ImageId=image, MinCount=1, MaxCount=1, TagSpecifications=[{"ResourceType": "instance", "Tags": pairs}]
    )
    return str(made["Instances"][0]["InstanceId"])


def test_nodes_of_another_owner_and_in_another_region_are_named_and_left(ec2: Callable[..., Any], api: Any, config: Path) -> None:
    west = pytest.importorskip("boto3").client("ec2", region_name="eu-west-1")
    theirs = [(api, started(api, config, "grace")), (west, started(west, config, "moto"))]
    done = ec2("shutdown", "--yes")
    assert done.code == 2
    assert re.search(r"of owner grace has 1 node in us-west-2, .*: shutdown --owner grace --region us-west-2 ends it", done.err)
    assert re.search(r"of owner moto has 1 node in eu-west-1, .*: shutdown --owner moto --region eu-west-1 ends it", done.err)
    assert ec2("launch", "--yes").code == 0
    done = ec2("shutdown", "--yes")
    assert done.code == 0
    assert "of owner grace has 1 node" in done.err
    for client, name in theirs:
        (held,) = client.describe_instances(InstanceIds=[name])["Reservations"]
        assert held["Instances"][0]["State"]["Name"] == "running"
    # the remedy in the message helps
    assert ec2("shutdown", "--yes", "--owner", "grace", "--region", "us-west-2").code == 0
    assert ec2("shutdown", "--yes", "--owner", "moto", "--region", "eu-west-1").code == 0
    done = ec2("shutdown", "--yes")
    assert done.code == 0
    assert "at further cost" not in done.err


def test_a_region_that_cannot_be_asked_keeps_nobody_from_shutting_down(ec2: Callable[..., Any], aws: Any, api: Any) -> None:
    assert ec2("launch", "--yes").code == 0
    for action in ("DescribeRegions", "DescribeVolumes"):
        aws.refuse(action, "UnauthorizedOperation", "You are not authorized to perform this operation.")
    done = ec2("shutdown", "--yes")
    assert done.code == 0
    assert "other regions cannot be asked: DescribeRegions: " in done.err
    assert "0 of 3 nodes" in ec2("status").out


def test_volumes_that_would_be_orphaned_are_named(ec2: Callable[..., Any], api: Any, config: Path) -> None:
    assert ec2("launch", "--yes").code == 0
    (node,) = re.findall(r"^worker-0 +(\S+)", ec2("status").out, re.M)
    mine = api.create_volume(AvailabilityZone="us-west-2b", Size=100, VolumeType="gp3")["VolumeId"]
    api.attach_volume(VolumeId=mine, InstanceId=node, Device="/dev/sdf")
    done = ec2("shutdown", "--yes")
    assert done.code == 0, done.err
    assert re.findall(r"^volume (\S+) of (\S+), (\d+) GiB, does not end with the nodes", done.err, re.M) == [
        (mine, "worker-0", "100")
    ]
    assert f"aws ec2 delete-volume --region us-west-2 --volume-id {mine}" in done.err


def test_groups_that_cannot_be_asked_for_do_not_keep_the_rest(ec2: Callable[..., Any], aws: Any) -> None:
    assert ec2("launch", "--yes").code == 0
    aws.refuse("DescribePlacementGroups", "UnauthorizedOperation", "You are not authorized", times=2)
    assert ec2("shutdown", "--yes").code == 2
    assert {"DeleteSecurityGroup", "DeleteKeyPair"} <= set(aws.actions())
    seen = len(aws.calls)
    assert ec2("shutdown", "--yes", "--no-placement-group").code == 0
    assert "DescribePlacementGroups" not in aws.actions()[seen:]
    assert ec2("shutdown", "--yes").code == 2  # the second refusal
    assert ec2("shutdown", "--yes").out.startswith("removed placement group psnode-")
