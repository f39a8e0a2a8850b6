"""Prices of instances, volumes and addresses: from AWS's price list, spot from the market, or from the configuration."""

from __future__ import annotations

import json
from typing import Any

from psnode_ec2.cloud import Cloud
from psnode_ec2.errors import ConfigurationError, Ec2Error
from psnode_ec2.settings import Settings

_HOURS = 730  # of a month, as AWS counts for volumes
_ADDRESS = 0.005  # USD for an hour of a public IPv4 address in every region (AWS's price list of VPC, since February 2024)


def on_demand(cloud: Cloud, settings: Settings, name: str) -> float:
    """USD for an hour of type `name` in the region. Raises ConfigurationError if nobody can tell."""
    terms = {
        "instanceType": name,
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
        "marketoption": "OnDemand",  # and no block of capacity, which costs nothing by the hour
    }
    return _listed(cloud, settings, name, terms, "Hrs")


def volume(cloud: Cloud, settings: Settings, kind: str) -> float:
    """USD for an hour of a GiB of this kind of volume, such as gp3. Raises ConfigurationError if nobody can tell."""
    return _listed(cloud, settings, kind, {"productFamily": "Storage", "volumeApiName": kind}, "GB-Mo") / _HOURS


def address(settings: Settings) -> float:
    """USD for an hour of a public address."""
    return settings.prices.get("ipv4", _ADDRESS)


def _listed(cloud: Cloud, settings: Settings, name: str, terms: dict[str, str], unit: str) -> float:
    if name in settings.prices:
        return settings.prices[name]
    terms |= {"regionCode": cloud.region}
    filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in terms.items()]
    try:
        found = cloud.ask("get_products", service="pricing", ServiceCode="AmazonEC2", Filters=filters)["PriceList"]
        if not found:
            raise LookupError("the price list does not have it")
        return max(_rate(json.loads(product), unit) for product in found)
    except (Ec2Error, ValueError, LookupError, TypeError) as error:
        what = "USD an hour" if unit == "Hrs" else "USD for a GiB and a month"
        raise ConfigurationError(
            f'the price of {name} in {cloud.region} cannot be asked ({error}): write prices = {{"{name}" = {what}}}'
        ) from error


def _rate(product: dict[str, Any], unit: str) -> float:
    dimensions = [rate for term in product["terms"]["OnDemand"].values() for rate in term["priceDimensions"].values()]
    rates = [float(rate["pricePerUnit"]["USD"]) for rate in dimensions if rate["unit"] == unit]
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
