"""What instances cost: on-demand from AWS's price list, spot from the market, or from the configuration."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from tools.ec2.cloud import Cloud
from tools.ec2.errors import CapError, ConfigurationError, Ec2Error
from tools.ec2.settings import Settings


def on_demand(cloud: Cloud, settings: Settings, name: str) -> float:
    """USD for an hour of type `name` in the region. Raises ConfigurationError if nobody can tell."""
    if name in settings.prices:
        return settings.prices[name]
    region = cloud.region
    terms = {
        "instanceType": name,
        "regionCode": region,
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
        "marketoption": "OnDemand",  # and no block of capacity, which costs nothing by the hour
    }
    filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in terms.items()]
    try:
        found = cloud.ask("get_products", service="pricing", ServiceCode="AmazonEC2", Filters=filters)["PriceList"]
        if not found:
            raise LookupError("the price list does not have it")
        return max(_hourly(json.loads(product)) for product in found)
    except (Ec2Error, ValueError, LookupError, TypeError) as error:
        raise ConfigurationError(
            f'the price of {name} in {region} cannot be asked ({error}): write prices = {{"{name}" = USD an hour}}'
        ) from error


def _hourly(product: dict[str, Any]) -> float:
    dimensions = [rate for term in product["terms"]["OnDemand"].values() for rate in term["priceDimensions"].values()]
    rates = [float(rate["pricePerUnit"]["USD"]) for rate in dimensions if rate["unit"] == "Hrs"]
    if not any(rate > 0 for rate in rates):
        raise LookupError("the price list says nothing")
    return max(rates)


def spot(cloud: Cloud, name: str, zone: str) -> float | None:
    """USD for a spot hour of type `name` in `zone` at the moment; None if EC2 does not say."""
    found = cloud.ask(
        "describe_spot_price_history",
        InstanceTypes=[name],
        ProductDescriptions=["Linux/UNIX"],
        Filters=[{"Name": "availability-zone", "Values": [zone]}],
        PaginationConfig={"MaxItems": 1},  # the newest comes first
    )["SpotPriceHistory"]
    return float(found[0]["SpotPrice"]) if found else None


def most_per_hour(cloud: Cloud, settings: Settings, types: Iterable[str]) -> float:
    """The most that an hour of all these instances can cost. Raises CapError if that is over max_hourly_price.

    A spot instance costs at most spot_price, or what it costs on demand where spot_price is 0.
    """
    names = list(types)
    each = {name: settings.spot_price or on_demand(cloud, settings, name) for name in sorted(set(names))}
    total = sum(each[name] for name in names)
    if total > settings.max_hourly_price:
        raise CapError(
            f"{len(names)} nodes may cost {total:.2f} USD an hour, over max_hourly_price = {settings.max_hourly_price:g}: "
            "raise it, or take fewer or smaller ones"
        )
    return total
