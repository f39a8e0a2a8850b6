"""All clusters of an account, and the cost of nodes that have ended."""

from __future__ import annotations

import datetime
import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def test_all_clusters_are_listed_whoever_owns_them_wherever_they_are(ec2: Callable[..., Any], aws: Any, config: Path) -> None:
    assert ec2("launch", "--yes", "--max-hours", 5).code == 0
    assert ec2("launch", "--yes", "--owner", "grace", "--n-workers", 1, "--max-hours", 0).code == 0
    west = ("--region", "eu-west-1", "--availability-zone", "eu-west-1b", "--name", "other")
    assert ec2("launch", "--yes", *west).code == 0
    name = tomllib.loads(config.read_text())["name"]
    shown = ec2("list")
    assert shown.code == 0, shown.err
    lines = shown.out.splitlines()
    assert [line.split()[:5] for line in lines[:-1]] == [
        ["eu-west-1", "other", "moto", "3", "m5.large"],
        ["us-west-2", name, "grace", "2", "m5.large"],
        ["us-west-2", name, "moto", "3", "m5.large"],
    ]
    assert lines[-1] == "3 clusters, 8 nodes"
    assert "never ends itself" in lines[1]
    assert re.search(r"ends itself \d{4}-\d\d-\d\d \d\d:\d\d UTC$", lines[2])
    assert [each["nodes"] for each in json.loads(ec2("list", "--json").out)] == [3, 2, 3]
    # a region that the account may not use does not hide other regions
    aws.refuse("DescribeInstances", "OptInRequired", "You are not subscribed to this service")
    partial = ec2("list")
    assert partial.code == 0
    assert re.search(r"^region \S+ cannot be asked: .*OptInRequired", partial.err, re.M)
    assert ec2("shutdown", "--yes", *west).code == 0
    assert ec2("list").out.splitlines()[-1] == "2 clusters, 5 nodes"


def test_nodes_that_have_ended_stand_in_the_cost(ec2: Callable[..., Any], aws: Any, api: Any, config: Path) -> None:
    assert ec2("launch", "--yes").code == 0
    (lost,) = re.findall(r"^worker-0 +(\S+)", ec2("status").out, re.M)
    assert "ended" not in ec2("cost").out
    # as if ten hours had passed, and EC2 had forgotten the nodes
    path = config.parent / "state" / "nodes.json"
    entries = json.loads(path.read_text())
    before = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=10)
    for each in entries:
        each["launched"] = before.isoformat()
    gone = {**entries[0], "id": "i-forgotten", "ended": (before + datetime.timedelta(hours=4)).isoformat()}
    theirs = {**gone, "id": "i-theirs", "owner": "grace"}
    path.write_text(json.dumps([*entries, gone, theirs]))
    api.terminate_instances(InstanceIds=[lost])
    shown = ec2("cost").out
    # the forgotten node lived four hours; the lost one, just started, counts at least a minute
    assert re.search(r"^2 m5.large ended since \d{4}-\d\d-\d\d, 4\.0[12] h at most: 0\.3[89] USD$", shown, re.M), shown
    assert re.search(r"^2 nodes: ", shown, re.M)
    total = float(re.findall(r"^together: .* an hour, (\S+) USD so far", shown, re.M)[0])
    assert total == pytest.approx(0.39, abs=0.02)
    assert ec2("shutdown", "--yes").code == 0
    assert re.search(r"^4 m5.large ended since", ec2("cost").out, re.M)


@pytest.mark.parametrize("damage", ["", "{", "[1]", '[{"id": 1}]', "\udc80"])
def test_a_damaged_memory_of_nodes_is_an_empty_one(ec2: Callable[..., Any], config: Path, damage: str) -> None:
    (config.parent / "state").mkdir()
    (config.parent / "state" / "nodes.json").write_bytes(damage.encode(errors="surrogateescape"))
    assert ec2("cost").code == 0
