"""Launch, status, get_hosts and shutdown with the moto server: the resources that exist afterwards."""

from __future__ import annotations

import ipaddress
import json
import re
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def name_of(config: Path) -> str:
    return str(tomllib.loads(config.read_text())["name"])


def live(api: Any, config: Path) -> list[dict[str, Any]]:
    """Return the cluster's instances that cost money."""
    filters = [
        {"Name": "tag:psnode:cluster", "Values": [name_of(config)]},
        {"Name": "instance-state-name", "Values": ["pending", "running", "stopping", "stopped"]},
    ]
    found = api.describe_instances(Filters=filters)["Reservations"]
    return [instance for reservation in found for instance in reservation["Instances"]]


def tags(resource: Any) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in resource["Tags"]}


def test_launch_starts_a_master_and_the_workers_with_tags(ec2: Any, api: Any, config: Path) -> None:
    done = ec2("launch", "--yes")
    assert done.code == 0, done.err
    found = live(api, config)
    assert sorted(tags(instance)["psnode:role"] for instance in found) == ["master", "worker", "worker"]
    assert {tags(instance)["psnode:owner"] for instance in found} == {"moto"}
    assert {instance["Placement"]["AvailabilityZone"] for instance in found} == {"us-west-2b"}
    assert {instance["InstanceType"] for instance in found} == {"m5.large"}
    assert [line.split()[0] for line in done.out.splitlines()] == ["master", "worker-0", "worker-1"]


def test_what_is_asked_of_ec2_keeps_the_nodes_safe(ec2: Any, aws: Any, api: Any, config: Path) -> None:
    assert ec2("launch", "--yes", "--method", "spot", "--spot-price", 0.05).code == 0
    asked = [form for action, form in aws.calls if action == "RunInstances"]
    assert all(form["InstanceMarketOptions.SpotOptions.MaxPrice"] == "0.05" for form in asked)
    assert [form["MinCount"] + form["MaxCount"] for form in asked] == ["22", "11"]
    for form in asked:
        assert form["MetadataOptions.HttpTokens"] == "required"
        assert form["InstanceInitiatedShutdownBehavior"] == "terminate"
        assert form["InstanceMarketOptions.SpotOptions.SpotInstanceType"] == "one-time"
        assert form["BlockDeviceMapping.1.Ebs.DeleteOnTermination"] == "true"
        tagged = {form[f"TagSpecification.{n}.ResourceType"] for n in range(1, 5)}
        assert tagged == {"instance", "volume", "network-interface", "spot-instances-request"}
    volumes = api.describe_volumes(Filters=[{"Name": "tag:psnode:cluster", "Values": [name_of(config)]}])["Volumes"]
    assert len(volumes) == 3
    assert all(volume["Encrypted"] for volume in volumes)


def test_the_security_group_lets_in_one_address_and_the_members(ec2: Any, api: Any, config: Path) -> None:
    ec2("launch", "--yes")
    groups = {group["GroupId"] for instance in live(api, config) for group in instance["SecurityGroups"]}
    assert len(groups) == 1
    (group,) = api.describe_security_groups(GroupIds=list(groups))["SecurityGroups"]
    assert group["GroupName"] == f"psnode-{name_of(config)}-moto"
    rules = {rule["IpProtocol"]: rule for rule in group["IpPermissions"]}
    assert set(rules) == {"tcp", "-1"}
    assert (rules["tcp"]["FromPort"], rules["tcp"]["ToPort"]) == (22, 22)
    assert [each["CidrIp"] for each in rules["tcp"]["IpRanges"]] == ["203.0.113.7/32"]
    assert [each["GroupId"] for each in rules["-1"]["UserIdGroupPairs"]] == list(groups)
    assert rules["-1"]["IpRanges"] == []


def test_who_moves_is_let_in_and_the_old_address_is_not(ec2: Any, api: Any, config: Path) -> None:
    ec2("launch", "--yes", "--n-workers", 1)
    ec2("launch", "--yes", "--ssh-from", "198.51.100.0/28")
    (group,) = api.describe_security_groups(Filters=[{"Name": "tag:psnode:cluster", "Values": [name_of(config)]}])[
        "SecurityGroups"
    ]
    ranges = [each["CidrIp"] for rule in group["IpPermissions"] for each in rule["IpRanges"]]
    assert ranges == ["198.51.100.0/28"]


@pytest.mark.parametrize("written", ["198.51.100.7", "198.51.100.7/255.255.255.255"])
def test_a_range_of_addresses_is_asked_of_ec2_as_it_writes_it(ec2: Any, api: Any, aws: Any, config: Path, written: str) -> None:
    assert ec2("launch", "--yes", "--n-workers", 1, "--ssh-from", written).code == 0
    asked = [form["IpPermissions.2.IpRanges.1.CidrIp"] for action, form in aws.calls if action == "AuthorizeSecurityGroupIngress"]
    assert asked == ["198.51.100.7/32"]


def test_who_moves_is_let_into_a_complete_cluster_too(ec2: Any, aws: Any, api: Any, config: Path) -> None:
    ec2("launch", "--yes")
    done = ec2("launch", "--dry-run", "--ssh-from", "198.51.100.7/32")
    assert re.findall(r"^would call ec2 (\w+) ", done.out, re.M) == [
        "revoke_security_group_ingress",
        "authorize_security_group_ingress",
    ]
    assert ec2("launch", "--yes", "--ssh-from", "198.51.100.7/32").code == 0
    (group,) = api.describe_security_groups(Filters=[{"Name": "tag:psnode:cluster", "Values": [name_of(config)]}])[
        "SecurityGroups"
    ]
    assert [each["CidrIp"] for rule in group["IpPermissions"] for each in rule["IpRanges"]] == ["198.51.100.7/32"]
    assert aws.actions().count("RunInstances") == 2


def test_efa_may_send_to_its_own_group_by_name(ec2: Any, api: Any, config: Path) -> None:
    done = ec2("launch", "--yes", "--efa")
    assert done.code == 0, done.err
    for _ in range(2):
        (group,) = api.describe_security_groups(Filters=[{"Name": "tag:psnode:cluster", "Values": [name_of(config)]}])[
            "SecurityGroups"
        ]
        pairs = [each["GroupId"] for rule in group["IpPermissionsEgress"] for each in rule.get("UserIdGroupPairs", [])]
        assert pairs == [group["GroupId"]]
        assert ec2("launch", "--yes", "--efa").code == 0


def test_nodes_have_public_addresses_in_a_subnet_that_gives_none(ec2: Any, aws: Any, api: Any, config: Path) -> None:
    vpc = api.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    made = api.create_subnet(VpcId=vpc, CidrBlock="10.9.1.0/24", AvailabilityZone="us-west-2b")["Subnet"]
    assert not made["MapPublicIpOnLaunch"]
    done = ec2("launch", "--yes", "--subnet-id", made["SubnetId"])
    assert done.code == 0, done.err
    found = live(api, config)
    assert [instance["SubnetId"] for instance in found] == [made["SubnetId"]] * 3
    assert all(instance["PublicIpAddress"] for instance in found)
    mine = [{"Name": "tag:psnode:cluster", "Values": [name_of(config)]}]
    (group,) = api.describe_security_groups(Filters=mine)["SecurityGroups"]
    asked = [form for action, form in aws.calls if action == "RunInstances"]
    assert {form["NetworkInterface.1.SecurityGroupId.1"] for form in asked} == {group["GroupId"]}
    ec2("shutdown", "--yes")
    assert ec2("launch", "--yes", "--subnet-id", made["SubnetId"], "--connect", "private").code == 0
    assert not any(instance.get("PublicIpAddress") for instance in live(api, config))


def other_key(folder: Path) -> Path:
    path = folder / "other key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return path


def test_a_key_pair_of_another_key_that_a_failed_launch_left_is_not_taken(
    ec2: Any, aws: Any, api: Any, config: Path, tmp_path: Path
) -> None:
    aws.refuse("RunInstances", "VcpuLimitExceeded")
    aws.refuse("DeleteKeyPair", "UnauthorizedOperation")
    assert ec2("launch", "--yes").code == 2
    key = other_key(tmp_path)
    assert ec2("launch", "--yes", "--path-to-keyfile", key).code == 0
    (name,) = {instance["KeyName"] for instance in live(api, config)}
    (pair,) = api.describe_key_pairs(KeyNames=[name], IncludePublicKey=True)["KeyPairs"]
    assert pair["PublicKey"].split()[:2] == key.with_suffix(".pub").read_text().split()[:2]
    assert ec2("shutdown", "--yes").code == 0
    assert api.describe_key_pairs(Filters=[{"Name": "tag:psnode:cluster", "Values": [name_of(config)]}])["KeyPairs"] == []


def test_nodes_that_let_in_another_key_are_not_joined_by_such_as_let_in_this_one(
    ec2: Any, aws: Any, config: Path, tmp_path: Path
) -> None:
    assert ec2("launch", "--yes", "--n-workers", 1).code == 0
    done = ec2("launch", "--yes", "--path-to-keyfile", other_key(tmp_path))
    assert done.code == 2
    assert "let in another key than" in done.err
    assert aws.actions().count("RunInstances") == 2


def test_a_second_master_is_refused_and_named(ec2: Any, aws: Any, api: Any, config: Path) -> None:
    ec2("launch", "--yes", "--n-workers", 1)
    found = live(api, config)
    worker = next(instance["InstanceId"] for instance in found if tags(instance)["psnode:role"] == "worker")
    api.create_tags(Resources=[worker], Tags=[{"Key": "psnode:role", "Value": "master"}])
    done = ec2("launch", "--yes")
    assert done.code == 2
    assert "the cluster has 2 masters" in done.err
    assert worker in done.err
    assert aws.actions().count("RunInstances") == 2
    assert ec2("get_hosts", "--n-workers", 1).code == 2


def test_a_launch_whose_nodes_do_not_start_says_what_stays(ec2: Any, aws: Any, api: Any, config: Path) -> None:
    def take(action: str, form: dict[str, str], body: bytes) -> None:
        if action == "RunInstances" and form["MinCount"] == "1":
            api.terminate_instances(InstanceIds=re.findall(r"<instanceId>(.*?)</instanceId>", body.decode()))

    aws.after = take
    done = ec2("launch", "--yes")
    assert done.code == 3
    assert "the other nodes stay, and cost: status shows them" in done.err
    assert len(re.findall(r"^worker-", ec2("status").out, re.M)) == len(live(api, config)) == 2


def test_a_second_launch_changes_nothing(ec2: Any, aws: Any, api: Any, config: Path) -> None:
    ec2("launch", "--yes")
    before = {instance["InstanceId"] for instance in live(api, config)}
    seen = len(aws.calls)
    assert ec2("launch", "--yes").code == 0
    assert {instance["InstanceId"] for instance in live(api, config)} == before
    assert [action for action in aws.actions()[seen:] if not action.startswith(("Describe", "Get"))] == []


def test_launch_replaces_a_node_that_is_gone_in_the_same_zone(ec2: Any, api: Any, config: Path) -> None:
    ec2("launch", "--yes")
    before = live(api, config)
    gone = next(instance["InstanceId"] for instance in before if tags(instance)["psnode:role"] == "worker")
    api.terminate_instances(InstanceIds=[gone])
    assert ec2("launch", "--yes").code == 0
    after = live(api, config)
    assert len(after) == 3
    assert len({instance["InstanceId"] for instance in after} - {instance["InstanceId"] for instance in before}) == 1
    assert {instance["Placement"]["AvailabilityZone"] for instance in after} == {"us-west-2b"}


def test_shutdown_leaves_nothing_of_the_cluster_and_everything_else(ec2: Any, aws: Any, api: Any, config: Path) -> None:
    image = api.describe_images(Filters=[{"Name": "name", "Values": ["ubuntu/*"]}])["Images"][0]["ImageId"]
    name = name_of(config)
    # clusters of other owners in the account: one of the same name, and one whose name begins alike
    strangers = [
        api.run_instances(
            ImageId=image,
            MinCount=1,
            MaxCount=1,
            TagSpecifications=[{"ResourceType": "instance", "Tags": [{"Key": k, "Value": v} for k, v in pairs.items()]}],
        )["Instances"][0]["InstanceId"]
        for pairs in (
            {"psnode:cluster": name, "psnode:owner": "grace"},
            {"psnode:cluster": name + "2", "psnode:owner": "moto"},
            {"Name": f"psnode-{name}"},
        )
    ]
    ec2("launch", "--yes")
    done = ec2("shutdown", "--yes")
    assert done.code == 0, done.err
    assert len(re.findall(r"removed (?:master|worker-\d) i-", done.out)) == 3
    states = [
        instance["State"]["Name"]
        for reservation in api.describe_instances(InstanceIds=strangers)["Reservations"]
        for instance in reservation["Instances"]
    ]
    assert states == ["running"] * 3
    mine = [{"Name": "tag:psnode:cluster", "Values": [name]}, {"Name": "tag:psnode:owner", "Values": ["moto"]}]
    assert api.describe_security_groups(Filters=mine)["SecurityGroups"] == []
    assert api.describe_key_pairs(Filters=mine)["KeyPairs"] == []
    assert aws.groups == {}
    assert api.describe_volumes(Filters=mine)["Volumes"] == []
    api.terminate_instances(InstanceIds=strangers)


@pytest.mark.parametrize("command", ["launch", "shutdown"])
def test_without_yes_nothing_happens_when_nobody_can_be_asked(
    ec2: Any, aws: Any, command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "empty").touch()
    with (tmp_path / "empty").open() as nobody:
        monkeypatch.setattr("sys.stdin", nobody)
        done = ec2(command)
    assert done.code == 2
    assert "--yes" in done.err
    assert all(action.startswith(("Describe", "Get")) for action in aws.actions())


def test_a_dry_run_prints_the_calls_and_changes_nothing(ec2: Any, aws: Any, api: Any, config: Path) -> None:
    done = ec2("launch", "--dry-run")
    assert done.code == 0, done.err
    changes = re.findall(r"^would call ec2 (\w+) ", done.out, re.M)
    assert changes == [
        "import_key_pair",
        "create_security_group",
        "authorize_security_group_ingress",
        "create_placement_group",
        "run_instances",
        "run_instances",
    ]
    parameters = [json.loads(text) for text in re.findall(r"^would call ec2 run_instances in us-west-2 (.*)$", done.out, re.M)]
    assert [each["MinCount"] for each in parameters] == [2, 1]
    assert re.fullmatch(r"\(\d+ lines of sh\)", parameters[0]["UserData"])
    lines = [line for line in done.out.splitlines() if "call " in line]
    assert len(lines) == len(set(lines)) and all(re.search(r"call \w+ \w+ in (us-west-2|us-east-1) \{", line) for line in lines)
    assert all(action.startswith(("Describe", "Get")) for action in aws.actions())
    ec2("launch", "--yes")
    done = ec2("shutdown", "--dry-run")
    assert done.code == 0
    assert re.findall(r"^would call ec2 (\w+) ", done.out, re.M)[0] == "terminate_instances"
    assert len(live(api, config)) == 3


def test_get_hosts_writes_what_atomos_users_know(ec2: Callable[..., Any], api: Any, config: Path, tmp_path: Path) -> None:
    ec2("launch", "--yes")
    done = ec2("get_hosts", "--directory", tmp_path / "hosts")
    assert done.code == 0, done.err
    addresses = (tmp_path / "hosts" / "hosts_address").read_text().split()
    by_role = {
        role: [i["PrivateIpAddress"] for i in live(api, config) if tags(i)["psnode:role"] == role]
        for role in ("master", "worker")
    }
    assert addresses == by_role["master"] + sorted(by_role["worker"], key=ipaddress.ip_address)
    lines = [line.split() for line in (tmp_path / "hosts" / "hosts").read_text().splitlines()]
    assert [line[:2] for line in lines] == [[address, f"deeplearning-worker{i}"] for i, address in enumerate(addresses, 1)]
    assert (tmp_path / "hosts" / "hostfile").read_text().splitlines() == [f"{address} slots=1" for address in addresses]


def test_status_counts_what_runs_and_shows_what_was_ended(ec2: Any, api: Any, config: Path) -> None:
    assert "0 of 3 nodes" in ec2("status").out
    ec2("launch", "--yes")
    nodes = json.loads(ec2("status", "--json").out)
    assert [node["role"] for node in nodes] == ["master", "worker", "worker"]
    api.terminate_instances(InstanceIds=[nodes[1]["id"]])
    out = ec2("status").out
    assert "2 of 3 nodes" in out
    assert re.search(rf"{nodes[1]['id']}.*(terminated|shutting-down)", out)


def test_the_newest_long_term_ubuntu_is_chosen(ec2: Any, api: Any, config: Path) -> None:
    ec2("launch", "--yes", "--n-workers", 1)
    (image,) = {instance["ImageId"] for instance in live(api, config)}
    # of 14.04 and 16.04 among moto's images
    assert "ubuntu-xenial-16.04-amd64" in api.describe_images(ImageIds=[image])["Images"][0]["Name"]


def test_every_command_needs_a_cluster_that_runs(ec2: Any) -> None:
    done = ec2("get_hosts")
    assert done.code == 2
    assert "run launch" in done.err
