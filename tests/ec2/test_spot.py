"""No capacity, too low a price, throttling, and taken nodes: typed errors, limited retries, and nothing left half done."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from psnode_ec2 import ec2_errors
from psnode_ec2.cloud import Cloud
from psnode_ec2.cluster import Cluster, cluster_of
from psnode_ec2.instance_requests import Common, Image, start
from psnode_ec2.launching import launch
from psnode_ec2.places import Place
from psnode_ec2.settings import Settings, load
from psnode_ec2.shutdown import shutdown

NO_ROOM = ("InsufficientInstanceCapacity", "We currently do not have sufficient m5.large capacity in the zone you requested")


@pytest.fixture
def stubbed() -> Any:
    """Yield a stub to which answers of EC2 are given in advance, a Cloud that gets them, and the seconds that the Cloud waits."""
    boto3 = pytest.importorskip("boto3")
    stub = pytest.importorskip("botocore.stub")
    client = boto3.client("ec2", region_name="us-west-2", aws_access_key_id="a", aws_secret_access_key="b")
    waits: list[float] = []
    cloud = Cloud(Settings(name="spot"), clients={"ec2": client}, sleep=waits.append)
    with stub.Stubber(client) as stubber:
        yield stubber, cloud, waits


@pytest.mark.parametrize(
    ("code", "kind", "exit_code"),
    [
        ("InsufficientInstanceCapacity", ec2_errors.CapacityError, 3),
        ("InsufficientCapacity", ec2_errors.CapacityError, 3),
        ("UnfulfillableCapacity", ec2_errors.CapacityError, 3),
        ("InsufficientVolumeCapacity", ec2_errors.CapacityError, 3),
        ("InsufficientAddressCapacity", ec2_errors.CapacityError, 3),
        ("SpotMaxPriceTooLow", ec2_errors.PriceTooLowError, 3),
        ("MaxSpotInstanceCountExceeded", ec2_errors.QuotaError, 2),
        ("Unsupported", ec2_errors.NotOfferedError, 2),
        ("UnauthorizedOperation", ec2_errors.AccessError, 2),
        ("SomethingNew", ec2_errors.Ec2Error, 1),
    ],
)
def test_every_refusal_is_an_error_of_its_kind_and_not_retried(stubbed: Any, code: str, kind: type, exit_code: int) -> None:
    stubber, cloud, waits = stubbed
    stubber.add_client_error("run_instances", code, "two\nlines.")
    with pytest.raises(kind) as caught:
        cloud.change("run_instances", MinCount=1, MaxCount=1)
    assert type(caught.value) is kind
    assert caught.value.exit_code == exit_code
    assert str(caught.value).startswith(f"RunInstances: two lines ({code})")
    assert waits == []
    stubber.assert_no_pending_responses()


@pytest.mark.parametrize("code", ["ServiceUnavailable", "InternalError"])
def test_a_call_that_aws_fails_is_made_again_later_each_time(stubbed: Any, code: str) -> None:
    stubber, cloud, waits = stubbed
    for _ in range(5):
        stubber.add_client_error("run_instances", code, http_status_code=503)
    stubber.add_response("run_instances", {"Instances": [{"InstanceId": "i-1"}]})
    assert cloud.change("run_instances", MinCount=1, MaxCount=1)["Instances"][0]["InstanceId"] == "i-1"
    # doubled each time from half a second, with jitter of up to half, so that concurrent tools do not retry together
    assert len(waits) == 5
    assert all(0.25 * 2**k <= seconds <= 0.5 * 2**k for k, seconds in enumerate(waits))


def test_what_ended_since_it_was_asked_for_the_first_time_is_started_anew(stubbed: Any, aws: Any) -> None:
    stubber, cloud, waits = stubbed
    ended, runs = (
        {"InstanceId": f"i-{number}", "State": {"Name": name}} for number, name in enumerate(["terminated", "running"])
    )
    stubber.add_response("run_instances", {"Instances": [ended, ended]})
    stubber.add_client_error("run_instances", "IdempotentInstanceTerminated")
    stubber.add_response("run_instances", {"Instances": [ended, runs]})
    common = Common(Image("ami-1", "image", "/dev/sda1"), "key", "sg-1", None)
    place = Place("us-west-2b", "subnet-1", "vpc-1", True, "m5.large", "m5.large")
    started = start(Cluster(cloud, "spot", "ada"), Settings(name="spot"), common, place, "worker", 2, (0,))
    assert started == {"i-0", "i-1"}
    assert waits == []
    stubber.assert_no_pending_responses()


@pytest.fixture
def paced(monkeypatch: pytest.MonkeyPatch) -> tuple[list[float], list[int]]:
    """Return the seconds that botocore waits between tries, and an entry per rate-limited call; no time passes."""
    waits, held = list[float](), list[int]()
    monkeypatch.setattr("botocore.endpoint.time", SimpleNamespace(sleep=waits.append, time=time.time))
    monkeypatch.setattr("botocore.retries.bucket.TokenBucket.acquire", lambda *args, **more: held.append(1))
    return waits, held


@pytest.mark.parametrize("code", ["RequestLimitExceeded", "Throttling"])
def test_a_throttled_call_is_made_again_and_slows_down_those_after_it(
    aws: Any, paced: tuple[list[float], list[int]], code: str
) -> None:
    aws.refuse("DescribeRegions", code, "Request limit exceeded.", times=5)
    cloud = Cloud(Settings(name="spot", region="us-west-2"))
    assert len(cloud.ask("describe_regions")["Regions"]) == 3
    waits, held = paced
    assert len(aws.actions()) == 6
    assert len(held) == 5  # all calls since the first refusal
    assert len(waits) == 5
    assert all(0 <= seconds <= 2**k for k, seconds in enumerate(waits))
    cloud.ask("describe_regions")
    assert (len(waits), len(held)) == (5, 6)


def test_throttling_that_does_not_end_is_given_up(aws: Any, paced: tuple[list[float], list[int]]) -> None:
    aws.refuse("DescribeRegions", "RequestLimitExceeded", "Request limit exceeded.", times=99)
    with pytest.raises(ec2_errors.ThrottledError, match="try later") as caught:
        Cloud(Settings(name="spot", region="us-west-2")).ask("describe_regions")
    assert caught.value.exit_code == 3
    assert len(aws.actions()) == 7
    assert sum(paced[0]) < 60


def test_shutdown_waits_until_nothing_uses_the_groups_any_more(ec2: Callable[..., Any], aws: Any, api: Any, config: Path) -> None:
    assert ec2("launch", "--yes").code == 0
    aws.refuse("DeleteSecurityGroup", "DependencyViolation", "resource sg-1 has a dependent object", times=5)
    aws.refuse("DeletePlacementGroup", "InvalidPlacementGroup.InUse", times=2)
    waits: list[float] = []
    settings = load(config, {})
    shutdown(cluster_of(Cloud(settings, sleep=waits.append), settings))
    assert len(waits) >= 7
    assert zones(api, config) == []
    assert aws.groups == {}
    mine = [{"Name": "tag:psnode:cluster", "Values": [settings.name]}]
    assert api.describe_security_groups(Filters=mine)["SecurityGroups"] == []
    assert api.describe_key_pairs(Filters=mine)["KeyPairs"] == []


def test_a_group_that_stays_in_use_does_not_keep_the_rest(aws: Any, ec2: Callable[..., Any], config: Path) -> None:
    assert ec2("launch", "--yes").code == 0
    aws.refuse("DeleteSecurityGroup", "DependencyViolation", "resource sg-1 has a dependent object", times=999)
    waits: list[float] = []
    settings = load(config, {})
    with pytest.raises(ec2_errors.InUseError, match=r"\(DependencyViolation\): see in the console what uses it"):
        shutdown(cluster_of(Cloud(settings, sleep=waits.append), settings))
    assert 60 < sum(waits) < 600
    assert aws.groups == {}


def zones(api: Any, config: Path) -> list[str]:
    """Return the zones of the cluster's running instances."""
    settings = load(config, {})
    filters = [{"Name": "tag:psnode:cluster", "Values": [settings.name]}, {"Name": "instance-state-name", "Values": ["running"]}]
    found = api.describe_instances(Filters=filters)["Reservations"]
    return [instance["Placement"]["AvailabilityZone"] for reservation in found for instance in reservation["Instances"]]


def zone_asked(api: Any, form: dict[str, str]) -> str:
    return str(api.describe_subnets(SubnetIds=[form["SubnetId"]])["Subnets"][0]["AvailabilityZone"])


def test_what_was_made_a_moment_ago_and_is_not_known_everywhere_is_waited_for(aws: Any, api: Any, config: Path) -> None:
    for action in ("AuthorizeSecurityGroupIngress", "RunInstances"):
        aws.refuse(action, "InvalidGroup.NotFound", "The security group 'sg-1' does not exist", times=3)
    waits: list[float] = []
    settings = load(config, {})
    cluster = cluster_of(Cloud(settings, sleep=waits.append), settings)
    assert len(launch(cluster, settings, lambda text: None)) == 3
    assert len(waits) >= 6
    assert zones(api, config) == ["us-west-2b"] * 3


def test_without_room_in_the_first_zone_the_whole_cluster_is_in_the_next(
    ec2: Callable[..., Any], aws: Any, api: Any, config: Path
) -> None:
    aws.refuse("RunInstances", *NO_ROOM)
    done = ec2("launch", "--yes", "--method", "spot", "--fallback-zones", "us-west-2d,us-west-2c")
    assert done.code == 0, done.err
    assert "no room for m5.large in us-west-2b" in done.err
    assert zones(api, config) == ["us-west-2d"] * 3


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("InsufficientFreeAddressesInSubnet", "There are not enough free addresses in subnet 'subnet-1'"),
        ("InvalidParameterCombination", "Cluster placement groups are not supported by the 'm5.large' instance type."),
        ("InvalidPlacementGroup.InUse", "The placement group 'psnode-x' is in use in another availability zone: us-west-2a"),
    ],
)
def test_what_only_one_place_cannot_have_is_asked_in_the_next(
    ec2: Callable[..., Any], aws: Any, api: Any, config: Path, code: str, message: str
) -> None:
    aws.refuse("RunInstances", code, message)
    done = ec2("launch", "--yes", "--fallback-zones", "us-west-2c")
    assert done.code == 0, done.err
    assert zones(api, config) == ["us-west-2c"] * 3


def test_without_room_for_the_master_the_workers_do_not_stay_behind(
    ec2: Callable[..., Any], aws: Any, api: Any, config: Path
) -> None:
    aws.refuse("RunInstances", *NO_ROOM, applies=lambda form: form["MinCount"] == "1")
    assert ec2("launch", "--yes", "--method", "spot", "--fallback-zones", "us-west-2c").code == 0
    assert zones(api, config) == ["us-west-2c"] * 3
    assert aws.actions().count("TerminateInstances") == 1


def test_what_a_refused_half_started_is_ended_even_if_ec2_does_not_show_it_yet(
    ec2: Callable[..., Any], aws: Any, api: Any, config: Path
) -> None:
    aws.refuse("RunInstances", *NO_ROOM, applies=lambda form: form["MinCount"] == "1")
    # EC2's parts learn of a node at different times
    aws.refuse("TerminateInstances", "InvalidInstanceID.NotFound", "The instance ID does not exist", times=2)

    def hide(action: str, form: dict[str, str]) -> bool:
        if action == "RunInstances" and form["MinCount"] == "1":
            aws.blind = 1
        return True

    aws.before = hide
    assert ec2("launch", "--yes", "--capacity-attempts", 1).code == 3
    assert zones(api, config) == []
    assert aws.groups == {}


def test_what_another_launch_has_started_meanwhile_outlives_the_failure_of_this_one(
    ec2: Callable[..., Any], aws: Any, api: Any, config: Path
) -> None:
    """Check that a launch that fails does not end a node that a second terminal has started between the starts of the workers
    and of the master.
    """
    aws.refuse("RunInstances", *NO_ROOM, times=9, applies=lambda form: form["MinCount"] == "1" and not theirs.get("asks"))
    theirs: dict[str, Any] = {}

    def interfere(action: str, form: dict[str, str]) -> bool:
        if action == "RunInstances" and form["MinCount"] == "1" and not theirs:
            name = load(config, {}).name
            tags = {"psnode:cluster": name, "psnode:owner": "moto", "psnode:role": "worker", "psnode:launch": "theirs"}
            image = api.describe_images(Filters=[{"Name": "name", "Values": ["ubuntu/*"]}])["Images"][0]["ImageId"]
            pairs = [{"Key": key, "Value": value} for key, value in tags.items()]
            theirs["asks"] = True
            made = api.run_instances(
                ImageId=image, MinCount=1, MaxCount=1, TagSpecifications=[{"ResourceType": "instance", "Tags": pairs}]
            )
            theirs.update(asks=False, id=made["Instances"][0]["InstanceId"])
        return True

    aws.before = interfere
    assert ec2("launch", "--yes", "--capacity-attempts", 1).code == 3
    (left,) = api.describe_instances(InstanceIds=[theirs["id"]])["Reservations"]
    assert left["Instances"][0]["State"]["Name"] == "running"
    filters = [{"Name": "tag:psnode:cluster", "Values": [load(config, {}).name]}]
    found = [each for held in api.describe_instances(Filters=filters)["Reservations"] for each in held["Instances"]]
    assert [each["InstanceId"] for each in found if each["State"]["Name"] == "running"] == [theirs["id"]]
    assert ec2("shutdown", "--yes").code == 0


def test_when_no_zone_has_room_the_next_type_is_taken_in_the_first(
    ec2: Callable[..., Any], aws: Any, api: Any, config: Path
) -> None:
    aws.refuse("RunInstances", *NO_ROOM, times=9, applies=lambda form: form["InstanceType"] == "m5.large")
    done = ec2("launch", "--yes", "--method", "spot", "--fallback-zones", "us-west-2c", "--fallback-types", "c5.2xlarge")
    assert done.code == 0, done.err
    asked = [(form["InstanceType"], zone_asked(api, form)) for action, form in aws.calls if action == "RunInstances"]
    assert asked == [
        ("m5.large", "us-west-2b"),
        ("m5.large", "us-west-2c"),
        ("c5.2xlarge", "us-west-2b"),
        ("c5.2xlarge", "us-west-2b"),
    ]


def test_the_rounds_through_the_zones_are_limited_and_further_and_further_apart(aws: Any, api: Any, config: Path) -> None:
    aws.refuse("RunInstances", *NO_ROOM, times=99)
    waits: list[float] = []
    settings = load(config, {"method": "spot", "fallback_zones": ("us-west-2c",), "capacity_attempts": 3})
    cluster = cluster_of(Cloud(settings, sleep=waits.append), settings)
    with pytest.raises(
        ec2_errors.CapacityError, match=r"no room anywhere \(tried m5.large in us-west-2b; m5.large in us-west-2c\)"
    ):
        launch(cluster, settings, lambda text: None)
    assert aws.actions().count("RunInstances") == 3 * 2
    assert len(waits) == 2
    assert 7.5 <= waits[0] <= 15 <= waits[1] <= 30
    assert zones(api, config) == []
    assert aws.groups == {}
    tokens = [form["ClientToken"] for action, form in aws.calls if action == "RunInstances"]
    assert len(set(tokens)) == 6


def test_a_price_below_the_market_everywhere_is_told_and_leaves_nothing(
    ec2: Callable[..., Any], aws: Any, api: Any, config: Path
) -> None:
    message = "Your Spot request price of 0.001 is lower than the minimum required Spot request fulfillment price of 0.035."
    aws.refuse("RunInstances", "SpotMaxPriceTooLow", message, times=9)
    done = ec2("launch", "--yes", "--method", "spot", "--spot-price", 0.001, "--capacity-attempts", 1)
    assert done.code == 3
    assert "fulfillment price of 0.035 (SpotMaxPriceTooLow): raise spot_price, or leave it out" in done.err
    assert zones(api, config) == []
    assert aws.groups == {}


def test_a_node_that_ec2_takes_while_the_cluster_starts_is_named(
    ec2: Callable[..., Any], aws: Any, api: Any, config: Path
) -> None:
    taken = itertools.count()

    def take(action: str, form: dict[str, str], body: bytes) -> None:
        if action == "RunInstances" and next(taken) == 0:
            api.terminate_instances(InstanceIds=[re.findall(r"<instanceId>(.*?)</instanceId>", body.decode())[0]])

    aws.after = take
    done = ec2("launch", "--yes", "--method", "spot")
    assert done.code == 3
    assert re.search(r"error: i-\w+ was ended by EC2 \(.*\): run launch again to replace it", done.err)
    assert ec2("launch", "--yes", "--method", "spot").code == 0
    assert zones(api, config) == ["us-west-2b"] * 3


def test_the_highest_price_is_asked_as_it_was_written(ec2: Callable[..., Any], aws: Any) -> None:
    prices = ["0.1234567", "3", "0.0001"]
    for price in prices:
        aws.refuse("RunInstances", "SpotMaxPriceTooLow")
        ec2("launch", "--yes", "--method", "spot", "--spot-price", price, "--capacity-attempts", 1)
    asked = [form["InstanceMarketOptions.SpotOptions.MaxPrice"] for action, form in aws.calls if action == "RunInstances"]
    assert asked == prices


def test_cost_counts_hours_at_the_price_of_each_kind(ec2: Callable[..., Any], aws: Any, api: Any, config: Path) -> None:
    import datetime

    from psnode_ec2.costs import costs

    ec2("launch", "--yes", "--worker-type", "c5.2xlarge", "--n-workers", 1)
    assert "2 nodes: 0.4360 USD an hour" in ec2("cost").out  # 0.096 + 0.34
    settings = load(config, {})
    cloud = Cloud(settings)
    nodes = cluster_of(cloud, settings).nodes()
    later = max(node.launched for node in nodes) + datetime.timedelta(hours=10)
    found = costs(cloud, settings, nodes, later)
    assert [round(each.so_far, 2) for each in found] == [0.96, 3.4]
    # at least a minute is billed
    assert costs(cloud, settings, nodes[:1], nodes[0].launched)[0].so_far == pytest.approx(0.096 / 60)


def test_what_runs_already_counts_at_its_own_price(ec2: Callable[..., Any], aws: Any, api: Any, config: Path) -> None:
    aws.prices["p4d.24xlarge"] = 30.0
    assert ec2("launch", "--yes", "--worker-type", "p4d.24xlarge", "--max-hourly-price", 100).code == 0
    (lost,) = re.findall(r"^worker-0 +(\S+)", ec2("status").out, re.M)
    api.terminate_instances(InstanceIds=[lost])
    done = ec2("launch", "--yes", "--max-hourly-price", 1)
    assert done.code == 2
    # 30 + 2 x 0.096, 150 GiB, 3 addresses
    assert "3 nodes may cost 30.22 USD an hour" in done.err
    shown = ec2("cost", "--max-hourly-price", 1).out
    assert "2 nodes: 30.0960 USD an hour" in shown
    assert "2 volumes of gp3, 100 GiB in all: 0.0110 USD an hour" in shown
    assert "2 public addresses: 0.0100 USD an hour" in shown
    assert re.search(
        r"^together: 30\.1170 USD an hour, \S+ USD so far, over max_hourly_price = 1: end what is not needed$", shown, re.M
    )


def test_volumes_that_outlived_their_nodes_count_under_the_cap(ec2: Callable[..., Any], api: Any) -> None:
    """Check the hourly price of a launch if the cluster has no nodes, but its last nodes left a volume with its tags."""
    assert ec2("launch", "--yes").code == 0
    found = re.search(r"of cluster (\S+), owner (\S+)$", ec2("status").out, re.M)
    assert found
    assert ec2("shutdown", "--yes").code == 0
    tags = [{"Key": "psnode:cluster", "Value": found[1]}, {"Key": "psnode:owner", "Value": found[2]}]
    left = api.create_volume(
        AvailabilityZone="us-west-2b", Size=16384, VolumeType="gp3", TagSpecifications=[{"ResourceType": "volume", "Tags": tags}]
    )
    done = ec2("launch", "--yes", "--max-hourly-price", 2)
    assert done.code == 2, done.err
    # 16 384 + 150 GiB at 0.08 / 730, 3 x (0.096 + 0.005)
    assert "3 nodes may cost 2.11 USD an hour with their volumes and addresses, over max_hourly_price = 2" in done.err
    api.delete_volume(VolumeId=left["VolumeId"])
    assert ec2("launch", "--yes", "--max-hourly-price", 2).code == 0


def test_a_spot_node_counts_under_the_limit_that_it_was_bought_with(ec2: Callable[..., Any], api: Any) -> None:
    assert ec2("launch", "--yes", "--method", "spot", "--spot-price", 5, "--max-hourly-price", 20).code == 0
    (lost,) = re.findall(r"^worker-0 +(\S+)", ec2("status").out, re.M)
    api.terminate_instances(InstanceIds=[lost])
    for method in (["--method", "spot", "--spot-price", 0.01], ["--method", "on-demand"]):
        done = ec2("launch", "--yes", "--max-hourly-price", 10, *method)
        assert done.code == 2, done.err
        assert re.search(r"3 nodes may cost 10\.\d\d USD an hour", done.err)  # two at 5 USD, and the new one


def test_cost_of_a_spot_node_is_that_of_the_market(ec2: Callable[..., Any], api: Any) -> None:
    ec2("launch", "--yes", "--method", "spot")
    market = api.describe_spot_price_history(
        InstanceTypes=["m5.large"], Filters=[{"Name": "availability-zone", "Values": ["us-west-2b"]}]
    )["SpotPriceHistory"][0]["SpotPrice"]
    assert f"{float(market):.4f} USD/h" in ec2("cost").out
