"""Places in the order of what EC2 says of them: by the spot prices of a day, or by its score for so many nodes, then by price."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from psnode_ec2.cloud import Cloud, progress
from psnode_ec2.errors import Ec2Error
from psnode_ec2.places import Place
from psnode_ec2.settings import Settings

_DAY = datetime.timedelta(days=1)


def by_market(cloud: Cloud, settings: Settings, places: Sequence[Place]) -> list[Place]:
    """`places` in the order that place_order says; what EC2 tells nothing of comes last, in the order that was given.

    The price is that of an hour of the whole cluster at each type's highest price of the last 24 hours, so that a short dip draws
    nobody in. A score is 1 to 10, of how likely so many nodes find room in the zone, if EC2 gives one.
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
    """The highest spot price of the last day by type and zone, in USD an hour."""
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
