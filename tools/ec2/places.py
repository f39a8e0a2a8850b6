"""Places for the cluster: zones with a subnet that offer the instance types, in the order in which they are tried."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

from psnode.config.declaration import nearest
from psnode_ec2.cloud import Cloud, progress
from psnode_ec2.ec2_errors import Ec2Error, NotOfferedError, SettingsError
from psnode_ec2.settings import Settings

_DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Place:
    """A zone, its subnet, and the instance types to start in it.

    `maps`: True if the subnet itself assigns public addresses.
    """

    zone: str
    subnet: str
    vpc: str
    maps: bool
    master_type: str
    worker_type: str
    zone_id: str = ""  # the zone's id, the same in all accounts

    def __str__(self) -> str:
        types = self.master_type if self.master_type == self.worker_type else f"{self.master_type} and {self.worker_type}"
        return f"{types} in {self.zone}"


def architecture_of(cloud: Cloud, types: Sequence[str]) -> str:
    """Return a processor architecture that all `types` have in common. Raises SettingsError if there is none."""
    found = cloud.ask("describe_instance_types", InstanceTypes=sorted(set(types)))["InstanceTypes"]
    by_type = {each["InstanceType"]: set(each["ProcessorInfo"]["SupportedArchitectures"]) - {"i386"} for each in found}
    common = set.intersection(*by_type.values()) if by_type else set()
    if not common:
        shown = ", ".join(f"{name} is {'/'.join(sorted(each))}" for name, each in sorted(by_type.items()))
        raise SettingsError(f"the instance types have no processor architecture in common ({shown}): one image must run on all")
    return str(min(common))


def places(cloud: Cloud, settings: Settings, only: str = "") -> list[Place]:
    """Return the places to try, best first; if `only` is given, only those in this zone.

    Raises NotOfferedError and SettingsError.
    """
    subnets = _subnets(cloud, settings)
    wanted = [only] if only else [zone for zone in (settings.availability_zone, *settings.fallback_zones) if zone]
    if unknown := [zone for zone in wanted if zone not in subnets]:
        hint = nearest(unknown[0], subnets)
        raise SettingsError(f"zone {unknown[0]} has no subnet to use{hint}; the zones that have: {', '.join(subnets)}")
    pairs = [(settings.master_type, settings.worker_type), *((other, other) for other in settings.fallback_types)]
    offered = _offers(cloud, {name for pair in pairs for name in pair})
    found = [
        Place(zone, *subnets[zone][:3], *pair, zone_id=subnets[zone][3])
        for pair in pairs
        for zone in (wanted or sorted(subnets))
        if all((name, zone) in offered for name in pair)
    ]
    missing = next((name for name in pairs[0] for zone in wanted[:1] if (name, zone) not in offered), None)
    if missing and not only:
        where = sorted(zone for name, zone in offered if name == missing)
        raise NotOfferedError(
            f"{missing} is not offered in {wanted[0]}: {'it is in ' + ', '.join(where) if where else 'nor in the region'}"
        )
    if not found:
        raise NotOfferedError(f"no zone offers {' and '.join(sorted(set(pairs[0])))}: choose other types or another region")
    return found


def _subnets(cloud: Cloud, settings: Settings) -> dict[str, tuple[str, str, bool, str]]:
    """Return by zone: the subnet, its VPC, True if the subnet assigns public addresses, and the zone's id."""
    if settings.subnet_id:
        found = cloud.ask("describe_subnets", SubnetIds=[settings.subnet_id])
    else:
        found = cloud.ask("describe_subnets", Filters=[{"Name": "default-for-az", "Values": ["true"]}])
    subnets = {
        each["AvailabilityZone"]: (
            each["SubnetId"],
            each["VpcId"],
            each.get("MapPublicIpOnLaunch", False),
            each.get("AvailabilityZoneId", ""),
        )
        for each in found["Subnets"]
    }
    if not subnets:
        raise SettingsError("the region has no default subnets: set subnet_id to one of yours")
    return dict(sorted(subnets.items()))


def _offers(cloud: Cloud, types: set[str]) -> set[tuple[str, str]]:
    filters = [{"Name": "instance-type", "Values": sorted(types)}]
    found = cloud.ask("describe_instance_type_offerings", LocationType="availability-zone", Filters=filters)
    return {(each["InstanceType"], each["Location"]) for each in found["InstanceTypeOfferings"]}


def by_market(cloud: Cloud, settings: Settings, places: Sequence[Place]) -> list[Place]:
    """Return `places` in the order of the setting place_order. Places for which EC2 has no data come last, in the given order.

    The price of a place is that of the whole cluster for an hour, at each type's highest price of the last 24 hours, so that
    short dips do not count. The score, from 1 to 10, rates the chance that the zone has room for the nodes; EC2 does not always
    give one.
    """
    if settings.place_order == "given" or len(places) < 2:
        return list(places)
    prices = _prices(cloud, places)
    scores = _scores(cloud, settings, places) if settings.place_order == "capacity" else {}

    def key(place: Place) -> tuple[int, float]:
        of = [prices.get((name, place.zone)) for name in [place.master_type] + settings.n_workers * [place.worker_type]]
        known = [price for price in of if price is not None]
        return -scores.get(place, 0), sum(known) if len(known) == len(of) else float("inf")

    ranked = sorted(places, key=key)
    for place in ranked[:3]:
        score, price = key(place)
        progress(
            f"{place}: {f'{price:.4f} USD an hour' if price < float('inf') else 'no price'}{f', score {-score}' if score else ''}"
        )
    return ranked


def _prices(cloud: Cloud, places: Sequence[Place]) -> dict[tuple[str, str], float]:
    """Return the highest spot price of the last 24 hours by type and zone, in USD per hour."""
    found = cloud.ask(
        "describe_spot_price_history",
        InstanceTypes=sorted({name for place in places for name in (place.master_type, place.worker_type)}),
        ProductDescriptions=["Linux/UNIX"],
        StartTime=datetime.datetime.now(datetime.UTC) - _DAY,
    )["SpotPriceHistory"]
    highest: dict[tuple[str, str], float] = {}
    for each in found:
        key = each["InstanceType"], each["AvailabilityZone"]
        highest[key] = max(highest.get(key, 0.0), float(each["SpotPrice"]))
    return highest


def _scores(cloud: Cloud, settings: Settings, places: Sequence[Place]) -> dict[Place, int]:
    found: dict[Place, int] = {}
    for types in sorted({(place.master_type, place.worker_type) for place in places}):
        try:
            scores = cloud.ask(
                "get_spot_placement_scores",
                InstanceTypes=sorted(set(types)),
                TargetCapacity=settings.n_workers + 1,
                SingleAvailabilityZone=True,
                RegionNames=[cloud.region],
            )["SpotPlacementScores"]
        except Ec2Error as error:
            progress(f"EC2 gives no scores of places ({error}): they go by price")
            return {}
        by_zone = {each["AvailabilityZoneId"]: each["Score"] for each in scores if "AvailabilityZoneId" in each}
        same = [place for place in places if (place.master_type, place.worker_type) == types]
        found |= {place: by_zone[place.zone_id] for place in same if place.zone_id in by_zone}
    return found
