"""The order of zones and types, by prices and by EC2's scores."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

SPOT = ("launch", "--method", "spot", "--availability-zone", "")
A, B, C, D = (f"us-west-2{letter}" for letter in "abcd")


@pytest.fixture
def tried(ec2: Callable[..., Any], aws: Any, api: Any) -> Callable[..., list[str]]:
    """Return a function that runs a launch while no zone has capacity, and returns the types and zones in the order tried."""
    subnets = {each["SubnetId"]: each["AvailabilityZone"] for each in api.describe_subnets()["Subnets"]}

    def run(*words: str) -> list[str]:
        aws.calls.clear()
        aws.refuse("RunInstances", "InsufficientInstanceCapacity", times=99)
        assert ec2(*SPOT, "--capacity-attempts", 1, "--yes", *words).code == 3
        asked = [form for action, form in aws.calls if action == "RunInstances"]
        return [f"{form['InstanceType']} {subnets[form['SubnetId']]}" for form in asked]

    return run


def test_the_cheapest_of_the_day_comes_first_and_what_has_no_price_last(aws: Any, tried: Callable[..., list[str]]) -> None:
    # zone c was cheapest only for a moment
    aws.market = [("m5.large", A, 0.05), ("m5.large", B, 0.04), ("m5.large", C, 0.01), ("m5.large", C, 0.09)]
    assert tried("--place-order", "price") == [f"m5.large {zone}" for zone in (B, A, C, D)]
    assert tried() == [f"m5.large {zone}" for zone in (A, B, C, D)]
    aws.market += [("c5.2xlarge", D, 0.03)]
    zones = tried("--place-order", "price", "--fallback-types", "c5.2xlarge", "--fallback-zones", f"{B},{D}")
    assert zones == [f"c5.2xlarge {D}", f"m5.large {B}", f"m5.large {D}", f"c5.2xlarge {B}"]


def test_a_score_of_room_goes_before_the_price(aws: Any, api: Any, tried: Callable[..., list[str]]) -> None:
    aws.market = [("m5.large", A, 0.05), ("m5.large", B, 0.04), ("m5.large", C, 0.03), ("m5.large", D, 0.06)]
    ids = {each["AvailabilityZone"]: each["AvailabilityZoneId"] for each in api.describe_subnets()["Subnets"]}
    aws.scores = {ids[A]: 9, ids[B]: 9, ids[D]: 3}
    assert tried("--place-order", "capacity") == [f"m5.large {zone}" for zone in (B, A, D, C)]
    (form,) = [form for action, form in aws.calls if action == "GetSpotPlacementScores"]
    assert (form["TargetCapacity"], form["SingleAvailabilityZone"], form["RegionName.1"]) == ("3", "true", "us-west-2")


def test_without_scores_the_price_decides(aws: Any, tried: Callable[..., list[str]]) -> None:
    aws.market = [("m5.large", A, 0.05), ("m5.large", B, 0.04)]
    aws.refuse("GetSpotPlacementScores", "UnauthorizedOperation", "You are not authorized", times=9)
    assert tried("--place-order", "capacity")[:2] == [f"m5.large {B}", f"m5.large {A}"]


def test_on_demand_has_one_price_in_all_zones(ec2: Callable[..., Any]) -> None:
    done = ec2("launch", "--place-order", "price", "--yes")
    assert done.code == 2
    assert "place_order is price but method is on-demand, whose prices are the same in all zones" in done.err


def test_a_dry_run_shows_what_is_asked_and_what_comes_of_it(ec2: Callable[..., Any], aws: Any) -> None:
    aws.market = [("m5.large", A, 0.05), ("m5.large", B, 0.04)]
    done = ec2(*SPOT, "--dry-run", "--place-order", "capacity")
    assert done.code == 0, done.err
    for call in ("describe_spot_price_history", "get_spot_placement_scores"):
        assert f"call ec2 {call} " in done.out
    # a master and two workers
    assert re.search(r"m5.large in us-west-2b: 0.1200 USD an hour\n", done.err)
