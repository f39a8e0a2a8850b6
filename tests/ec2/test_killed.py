"""A launch that is killed at one of its calls and then run again gives the same cluster as an undisturbed launch, without
orphans.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
READING = ("Describe", "Get")

# all AWS calls of the launch of a new cluster, in order
CALLS = [
    "GetCallerIdentity", "DescribeInstances", "DescribeSubnets", "DescribeInstanceTypeOfferings", "DescribeInstanceTypes",
    "DescribeImages", "GetProducts", "GetProducts", "DescribeVolumes",
    "DescribeKeyPairs", "ImportKeyPair", "DescribeKeyPairs",
    "DescribeSecurityGroups", "CreateSecurityGroup", "DescribeSecurityGroups", "DescribeSecurityGroups",
    "AuthorizeSecurityGroupIngress",
    "DescribePlacementGroups", "CreatePlacementGroup", "DescribePlacementGroups",
    "DescribeInstances", "RunInstances", "DescribeInstances", "RunInstances", "DescribeInstances",
]  # fmt: skip
# a call that changes something may be cut off before EC2 carries it out, or afterwards, when its answer is lost
MOMENTS = [
    pytest.param(number, done, id=f"{number:02}-{action}-{'done' if done else 'not-done'}")
    for number, action in enumerate(CALLS)
    for done in ([False] if action.startswith(READING) else [False, True])
]


def killed_launch(front: Any, config: Path, number: int, *, done: bool) -> None:
    """Run `psnode-ec2 launch` in a new process, and kill it at call `number`, before or after the call is carried out."""
    front.calls.clear()
    started = threading.Event()

    def strike() -> bool:
        started.wait()
        if len(front.calls) != number + 1:
            return True
        process.kill()
        process.wait()
        return False

    calls = {"before": lambda action, form: strike(), "after": lambda action, form, body: strike()}
    name = "after" if done else "before"
    nothing, front.__dict__[name] = front.__dict__[name], calls[name]
    line = [sys.executable, "-m", "psnode_ec2", "launch", "--yes", "--config", str(config)]
    quiet: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(line, cwd=config.parent, env={**os.environ, "PYTHONPATH": str(ROOT)}, **quiet)
    started.set()
    assert process.wait(timeout=60) == -9
    front.__dict__[name] = nothing


def all_of(api: Any, config: Path) -> Counter[str]:
    """Count the live instances, by role, and the security groups, key pairs and volumes with the cluster's name."""
    name = tomllib.loads(config.read_text())["name"]
    mine = [{"Name": "tag:psnode:cluster", "Values": [name]}]
    states = {"Name": "instance-state-name", "Values": ["pending", "running", "stopping", "stopped"]}
    instances = [
        instance
        for reservation in api.describe_instances(Filters=[*mine, states])["Reservations"]
        for instance in reservation["Instances"]
    ]
    roles = [tag["Value"] for instance in instances for tag in instance["Tags"] if tag["Key"] == "psnode:role"]
    return Counter(
        {
            **Counter(roles),
            "security groups": len(api.describe_security_groups(Filters=mine)["SecurityGroups"]),
            "key pairs": len(api.describe_key_pairs(Filters=mine)["KeyPairs"]),
            "volumes": len(api.describe_volumes(Filters=mine)["Volumes"]),
        }
    )


def running(api: Any) -> set[str]:
    """Return the ids of all running instances of the account."""
    found = api.describe_instances(Filters=[{"Name": "instance-state-name", "Values": ["pending", "running"]}])["Reservations"]
    return {instance["InstanceId"] for reservation in found for instance in reservation["Instances"]}


WHOLE = Counter({"master": 1, "worker": 2, "security groups": 1, "key pairs": 1, "volumes": 3})
# the effects of calls, in the order of CALLS
EFFECTS = {
    "ImportKeyPair": [Counter({"key pairs": 1})],
    "CreateSecurityGroup": [Counter({"security groups": 1})],
    "RunInstances": [Counter({"worker": 2, "volumes": 2}), Counter({"master": 1, "volumes": 1})],
}


def effect(calls: list[str]) -> Counter[str]:
    """Return the number of resources of each kind that exist after `calls`, the first calls of a launch."""
    there: Counter[str] = Counter()
    for action, each in EFFECTS.items():
        for one in each[: calls.count(action)]:
            there += one
    return there


def test_the_list_of_calls_is_that_of_a_launch(ec2: Callable[..., Any], aws: Any) -> None:
    assert ec2("launch", "--yes").code == 0
    assert aws.actions() == CALLS


@pytest.mark.sweep
@pytest.mark.parametrize(("number", "done"), MOMENTS)
def test_a_launch_killed_there_is_completed_by_another_one(
    ec2: Callable[..., Any], aws: Any, api: Any, config: Path, number: int, done: bool
) -> None:
    others = running(api)
    killed_launch(aws, config, number, done=done)
    assert +all_of(api, config) == effect(CALLS[: number + done])
    left = running(api) - others
    status = ec2("status").out
    assert set(re.findall(r"\bi-[0-9a-f]+", status)) == left
    completed = ec2("launch", "--yes")
    assert completed.code == 0, completed.err
    assert all_of(api, config) == WHOLE
    assert len(aws.groups) == 1
    assert left <= running(api)
    assert len(running(api) - others) == 3
    assert ec2("shutdown", "--yes").code == 0
    assert all_of(api, config).total() == 0
    assert aws.groups == {}
    assert running(api) == others


def test_what_a_killed_launch_started_is_not_started_twice_even_if_ec2_does_not_show_it_yet(
    ec2: Callable[..., Any], aws: Any, api: Any, config: Path
) -> None:
    others = running(api)
    killed_launch(aws, config, CALLS.index("RunInstances"), done=True)
    aws.calls.clear()
    aws.blind = 2  # launch reads these before it starts anything
    assert ec2("launch", "--yes").code == 0
    assert aws.actions().count("RunInstances") == 2
    assert len(running(api) - others) == 3
    assert all_of(api, config) == WHOLE


def test_hours_later_nothing_is_started_twice_either(
    ec2: Callable[..., Any], aws: Any, api: Any, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = running(api)
    assert ec2("launch", "--yes").code == 0
    now = time.time
    monkeypatch.setattr("time.time", lambda: now() + 5 * 3600)
    aws.blind = 1
    assert ec2("launch", "--yes").code == 0
    assert aws.actions().count("RunInstances") == 2  # launch reads again before it starts anything
    assert len(running(api) - others) == 3


def test_nodes_that_all_have_ended_are_started_anew(ec2: Callable[..., Any], aws: Any, api: Any, config: Path) -> None:
    others = running(api)
    for _ in range(3):
        assert ec2("launch", "--yes").code == 0
        assert all_of(api, config) == WHOLE
        api.terminate_instances(InstanceIds=list(running(api) - others))


def test_shutdown_after_a_killed_launch_leaves_nothing(ec2: Callable[..., Any], aws: Any, api: Any, config: Path) -> None:
    others = running(api)
    killed_launch(aws, config, CALLS.index("RunInstances"), done=True)
    assert len(running(api) - others) == 2
    assert ec2("shutdown", "--yes").code == 0
    assert all_of(api, config).total() == 0
    assert aws.groups == {}


@pytest.mark.sweep
@pytest.mark.parametrize("number", [number for number, action in enumerate(CALLS) if not action.startswith(READING)])
def test_a_launch_that_is_refused_there_leaves_nothing(
    ec2: Callable[..., Any], aws: Any, api: Any, config: Path, number: int
) -> None:
    action, nth = CALLS[number], CALLS[:number].count(CALLS[number])
    seen: list[int] = []

    def applies(form: dict[str, str]) -> bool:
        seen.append(1)
        return len(seen) == nth + 1

    aws.refuse(action, "UnauthorizedOperation", "You are not authorized to perform this operation.", applies=applies)
    done = ec2("launch", "--yes")
    assert done.code == 2
    assert len(done.err.strip().splitlines()[-1:]) == 1
    assert "docs/ec2.md lists the permissions" in done.err
    assert all_of(api, config).total() == 0
    assert aws.groups == {}
