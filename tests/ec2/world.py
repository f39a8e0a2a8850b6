"""EC2 as a boto3 client sees it, emulated in this process and in virtual time, where the calls of several launches interleave.

One seed determines the order of the launches, the failures, and the delays until EC2 shows new instances. Nothing here sleeps.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import botocore.exceptions

LIVE = ("pending", "running")
START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
READY = 20.0  # seconds until an instance runs


def refusal(operation: str, code: str) -> Exception:
    name = "".join(part.capitalize() for part in operation.split("_"))
    return botocore.exceptions.ClientError({"Error": {"Code": code, "Message": "no"}}, name)


def cut() -> Exception:
    return botocore.exceptions.ConnectionClosedError(endpoint_url="https://ec2")


@dataclass
class Turns:
    """Threads that run one at a time. At each of their calls `random` chooses the next thread; `now` is the time in seconds,
    common to all.
    """

    random: random.Random
    now: float = 0.0
    waiting: dict[int, float] = field(default_factory=dict)  # the time until which each thread sleeps
    gates: dict[int, threading.Semaphore] = field(default_factory=dict)
    parked: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    limit: int = 20_000

    def pause(self, seconds: float = 0.0) -> None:
        """Let other threads run, and return once `seconds` of virtual time have passed."""
        me = threading.get_ident()
        if me in self.gates:
            self.waiting[me] = self.now + seconds
            self.parked.release()
            self.gates[me].acquire()
        else:
            self.now += seconds

    def run(self, works: list[Callable[[], Any]]) -> list[Any]:
        """Run `works` in threads, and return the result of each, or the error that it raised."""
        results: list[Any] = [None] * len(works)

        def body(number: int) -> None:
            me = threading.get_ident()
            self.gates[me] = threading.Semaphore(0)
            self.pause()
            try:
                results[number] = works[number]()
            except Exception as error:
                results[number] = error
            del self.gates[me]
            self.parked.release()

        threads = [threading.Thread(target=body, args=(number,)) for number in range(len(works))]
        for thread in threads:
            thread.start()
            self.parked.acquire()
        for _ in range(self.limit):
            if not self.waiting:
                break
            # any process may be delayed, so sometimes the thread with the later time runs first
            ready = sorted(self.waiting, key=self.waiting.__getitem__)
            after = [each for each in ready if self.waiting[each] <= self.now] or ready[:1]
            chosen = self.random.choice(after)
            self.now = max(self.now, self.waiting.pop(chosen)) + self.random.uniform(0.01, 0.2)
            self.gates[chosen].release()
            self.parked.acquire()
        else:
            raise AssertionError("the launches do not end")
        for thread in threads:
            thread.join()
        return results


@dataclass
class World:
    """One region. `faults(operation, parameters)` returns None, or (whether the call takes effect, the error that it then
    raises).
    """

    turns: Turns
    faults: Callable[[str, dict[str, Any]], tuple[bool, Exception] | None] = lambda operation, parameters: None
    late: Callable[[], float] = lambda: 0.0  # seconds until a new instance is shown
    instances: dict[str, dict[str, Any]] = field(default_factory=dict)
    resources: dict[str, dict[str, dict[str, Any]]] = field(
        default_factory=lambda: {"security": {}, "placement": {}, "key": {}, "volume": {}}
    )
    tokens: dict[str, tuple[dict[str, Any], list[str]]] = field(default_factory=dict)
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    ended_by: dict[str, str] = field(default_factory=dict)  # the launch that ended each instance, by instance id
    numbers: Any = field(default_factory=itertools.count)

    def live(self) -> list[dict[str, Any]]:
        return [each for each in self.instances.values() if self._state(each) in LIVE]

    def call(self, who: str, operation: str, **parameters: Any) -> dict[str, Any]:
        self.turns.pause()
        self.calls.append((operation, parameters))
        fault = self.faults(operation, parameters)
        if fault and not fault[0]:
            raise fault[1]
        answer: dict[str, Any] = getattr(self, operation)(who, **parameters)
        if fault:
            raise fault[1]
        return answer

    # calls whose answers are the same for all launches

    def describe_subnets(self, who: str, **how: Any) -> dict[str, Any]:
        zones = ("us-west-2a", "us-west-2b", "us-west-2c")
        return {
            "Subnets": [
                {"AvailabilityZone": zone, "SubnetId": f"subnet-{zone[-1]}", "VpcId": "vpc-1", "MapPublicIpOnLaunch": True}
                for zone in zones
            ]
        }

    def describe_instance_type_offerings(self, who: str, Filters: Any, **how: Any) -> dict[str, Any]:
        zones = [each["AvailabilityZone"] for each in self.describe_subnets(who)["Subnets"]]
        names = Filters[0]["Values"]
        return {"InstanceTypeOfferings": [{"InstanceType": name, "Location": zone} for name in names for zone in zones]}

    def describe_instance_types(self, who: str, InstanceTypes: list[str]) -> dict[str, Any]:
        processor = {"SupportedArchitectures": ["x86_64"]}
        return {"InstanceTypes": [{"InstanceType": name, "ProcessorInfo": processor} for name in InstanceTypes]}

    def describe_images(self, who: str, **how: Any) -> dict[str, Any]:
        name = "ubuntu/images/hvm-ssd/ubuntu-noble-24.04-amd64-server-1"
        return {"Images": [{"ImageId": "ami-1", "Name": name, "Architecture": "x86_64", "CreationDate": "2026"}]}

    # calls about instances

    def _state(self, instance: dict[str, Any]) -> str:
        if "ended" in instance:
            return "shutting-down" if self.turns.now < instance["ended"] + 5 else "terminated"
        return "pending" if self.turns.now < instance["started"] + READY else "running"

    def _shown(self, instance: dict[str, Any]) -> dict[str, Any]:
        return {
            "InstanceId": instance["id"],
            "InstanceType": instance["type"],
            "Placement": {"AvailabilityZone": f"us-west-2{instance['subnet'][-1]}"},
            "State": {"Name": self._state(instance)},
            "PrivateIpAddress": f"172.31.0.{1 + instance['number'] % 250}",
            "PublicIpAddress": "203.0.113.1",
            "LaunchTime": START + datetime.timedelta(seconds=int(instance["started"])),
            "StateReason": {"Code": "Client.UserInitiatedShutdown"} if "ended" in instance else None,
            "Tags": instance["tags"],
            "KeyName": instance["key"],
        }

    def run_instances(self, who: str, **wanted: Any) -> dict[str, Any]:
        token = wanted["ClientToken"]
        if token in self.tokens:
            first, ids = self.tokens[token]
            if first != wanted:
                raise refusal("run_instances", "IdempotentParameterMismatch")
            if all("ended" in self.instances[each] for each in ids):
                raise refusal("run_instances", "IdempotentInstanceTerminated")
            return {"Instances": [self._shown(self.instances[each]) for each in ids]}
        if wanted["SecurityGroupIds"][0] not in self.resources["security"]:
            raise refusal("run_instances", "InvalidGroup.NotFound")
        if wanted["KeyName"] not in self.resources["key"]:
            raise refusal("run_instances", "InvalidKeyPair.NotFound")
        if (group := wanted["Placement"].get("GroupName")) and group not in self.resources["placement"]:
            raise refusal("run_instances", "InvalidPlacementGroup.Unknown")
        made = []
        for _ in range(wanted["MinCount"]):
            number = next(self.numbers)
            made.append(f"i-{number:04x}")
            self.instances[made[-1]] = {
                "id": made[-1], "number": number, "type": wanted["InstanceType"], "subnet": wanted["SubnetId"],
                "started": self.turns.now, "shown": self.turns.now + self.late(), "key": wanted["KeyName"],
                "tags": wanted["TagSpecifications"][0]["Tags"], "by": who,
                "lets_in": self.resources["key"][wanted["KeyName"]]["public"], "uses": {wanted["SecurityGroupIds"][0], group},
            }  # fmt: skip
        self.tokens[token] = wanted, made
        return {"Instances": [self._shown(self.instances[each]) for each in made]}

    def describe_instances(self, who: str, Filters: list[dict[str, Any]]) -> dict[str, Any]:
        seen = [each for each in self.instances.values() if each["shown"] <= self.turns.now]
        for rule in Filters:
            name, values = rule["Name"], rule["Values"]
            if name == "client-token":
                seen = [each for each in seen if each["id"] in self.tokens.get(values[0], ({}, []))[1]]
            elif name == "instance-state-name":
                seen = [each for each in seen if self._state(each) in values]
            else:
                seen = [each for each in seen if _tag(each["tags"], name.removeprefix("tag:")) in values]
        return {"Reservations": [{"Instances": [self._shown(each)]} for each in seen]}

    def terminate_instances(self, who: str, InstanceIds: list[str]) -> dict[str, Any]:
        for each in InstanceIds:
            if self.instances[each]["shown"] > self.turns.now:
                raise refusal("terminate_instances", "InvalidInstanceID.NotFound")
        for each in InstanceIds:
            self.instances[each].setdefault("ended", self.turns.now)
            self.ended_by.setdefault(each, who)
        return {}

    # calls about groups and keys

    def _make(self, kind: str, name: str, tags: Any, **more: Any) -> None:
        if any(each["name"] == name for each in self.resources[kind].values()):
            codes = {"security": "InvalidGroup", "placement": "InvalidPlacementGroup", "key": "InvalidKeyPair"}
            raise refusal(f"create_{kind}", f"{codes[kind]}.Duplicate")
        identity = f"sg-{next(self.numbers)}" if kind == "security" else name
        self.resources[kind][identity] = {"name": name, "Tags": tags[0]["Tags"], **more}

    def _found(self, kind: str, filters: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
        tags = [rule for rule in filters if rule["Name"].startswith("tag:")]
        return [
            (identity, each)
            for identity, each in self.resources[kind].items()
            if all(_tag(each["Tags"], rule["Name"][4:]) in rule["Values"] for rule in tags)
        ]

    def describe_key_pairs(self, who: str, Filters: Any, **how: Any) -> dict[str, Any]:
        found = self._found("key", Filters)
        return {"KeyPairs": [{"KeyName": name, "PublicKey": each["public"], "Tags": each["Tags"]} for name, each in found]}

    def import_key_pair(self, who: str, KeyName: str, PublicKeyMaterial: bytes, TagSpecifications: Any) -> dict[str, Any]:
        self._make("key", KeyName, TagSpecifications, public=PublicKeyMaterial.decode())
        return {}

    def delete_key_pair(self, who: str, KeyName: str) -> dict[str, Any]:
        self.resources["key"].pop(KeyName, None)
        return {}

    def describe_security_groups(self, who: str, Filters: Any = (), GroupIds: Any = ()) -> dict[str, Any]:
        found = self._found("security", list(Filters))
        if GroupIds and GroupIds[0] not in self.resources["security"]:
            raise refusal("describe_security_groups", "InvalidGroup.NotFound")
        return {
            "SecurityGroups": [
                {"GroupId": identity, "GroupName": each["name"], "Tags": each["Tags"], "IpPermissions": list(each["rules"])}
                for identity, each in found
                if not GroupIds or identity in GroupIds
            ]
        }

    def create_security_group(self, who: str, GroupName: str, TagSpecifications: Any, **how: Any) -> dict[str, Any]:
        self._make("security", GroupName, TagSpecifications, rules=[])
        return {}

    def authorize_security_group_ingress(self, who: str, GroupId: str, IpPermissions: list[Any]) -> dict[str, Any]:
        if GroupId not in self.resources["security"]:
            raise refusal("authorize_security_group_ingress", "InvalidGroup.NotFound")
        rules = self.resources["security"][GroupId]["rules"]
        if any(each in rules for each in IpPermissions):
            raise refusal("authorize_security_group_ingress", "InvalidPermission.Duplicate")
        rules += IpPermissions
        return {}

    def revoke_security_group_ingress(self, who: str, GroupId: str, IpPermissions: list[Any]) -> dict[str, Any]:
        if GroupId not in self.resources["security"]:
            raise refusal("revoke_security_group_ingress", "InvalidGroup.NotFound")
        rules = self.resources["security"][GroupId]["rules"]
        rules[:] = [each for each in rules if each not in IpPermissions]
        return {}

    def delete_security_group(self, who: str, GroupId: str) -> dict[str, Any]:
        if any(GroupId in each["uses"] for each in self.live()):
            raise refusal("delete_security_group", "DependencyViolation")
        self.resources["security"].pop(GroupId, None)
        return {}

    def describe_placement_groups(self, who: str, Filters: Any) -> dict[str, Any]:
        found = self._found("placement", Filters)
        return {"PlacementGroups": [{"GroupName": name, "State": "available", "Tags": each["Tags"]} for name, each in found]}

    def create_placement_group(self, who: str, GroupName: str, TagSpecifications: Any, **how: Any) -> dict[str, Any]:
        self._make("placement", GroupName, TagSpecifications)
        return {}

    def delete_placement_group(self, who: str, GroupName: str) -> dict[str, Any]:
        if any(GroupName in each["uses"] for each in self.live()):
            raise refusal("delete_placement_group", "InvalidPlacementGroup.InUse")
        self.resources["placement"].pop(GroupName, None)
        return {}

    def describe_volumes(self, who: str, **how: Any) -> dict[str, Any]:
        return {"Volumes": []}


@dataclass
class Client:
    """Stand-in for boto3's client. `who` is the launch that uses it."""

    world: World
    who: str
    meta: Any = field(default_factory=lambda: SimpleNamespace(region_name="us-west-2"))

    def can_paginate(self, operation: str) -> bool:
        return False

    def __getattr__(self, operation: str) -> Callable[..., dict[str, Any]]:
        return lambda **parameters: self._call(operation, parameters)

    def _call(self, operation: str, parameters: dict[str, Any]) -> dict[str, Any]:
        """Make a call; like botocore, repeat a throttled call after growing delays."""
        for attempt in range(6):
            try:
                return self.world.call(self.who, operation, **parameters)
            except botocore.exceptions.ClientError as error:
                if error.response["Error"]["Code"] != "RequestLimitExceeded":
                    raise
            self.world.turns.pause(min(20.0, 2.0**attempt) * random.random())
        return self.world.call(self.who, operation, **parameters)


def _tag(tags: list[dict[str, str]], key: str) -> str:
    with contextlib.suppress(StopIteration):
        return next(tag["Value"] for tag in tags if tag["Key"] == key)
    return ""
