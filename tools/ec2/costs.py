"""Costs of a cluster per hour and so far, at today's prices and without traffic, and the cap on the hourly cost."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psnode_ec2.cloud import Cloud
from psnode_ec2.cluster import Node, counted
from psnode_ec2.ec2_errors import CapError, Ec2Error, SettingsError
from psnode_ec2.ledger import LedgerEntry
from psnode_ec2.resources import Volume
from psnode_ec2.settings import Settings

_LEAST_SECONDS = 60.0  # EC2 bills Linux by the second, and at least one minute
_HOUR, _MONTH = "USD an hour", "USD for a GiB and a month"
_HOURS = 730  # hours in a month, as in AWS's prices of volumes
_ADDRESS = 0.005  # USD for an hour of a public IPv4 address in every region (AWS's price list of VPC, since February 2024)


@dataclass(frozen=True)
class Cost:
    """Cost of a node: the hours since its start, and the price of an hour in USD.

    `at_most`: True if the spot price is unknown; then `hourly` is the most that the node may cost.
    """

    node: Node
    hours: float
    hourly: float
    at_most: bool

    @property
    def so_far(self) -> float:
        """USD since the start of the node, at the present price."""
        return max(self.hours, _LEAST_SECONDS / 3600) * self.hourly


@dataclass(frozen=True)
class Extra:
    """A cost other than that of a live instance. `text` names it; `hourly` and `so_far` are in USD."""

    text: str
    hourly: float
    so_far: float


def extras(
    cloud: Cloud, settings: Settings, nodes: Sequence[Node], volumes: Sequence[Volume], now: datetime.datetime
) -> list[Extra]:
    """Return the costs of the volumes, by kind, and of the public addresses, so far and per hour.

    Raises SettingsError for an unknown price.
    """
    found = []
    for kind in sorted({each.kind for each in volumes}):
        price, same = volume_price(cloud, settings, kind), [each for each in volumes if each.kind == kind]
        gib = sum(each.gib for each in same)
        hours = sum(each.gib * max((now - each.created).total_seconds() / 3600, 0.0) for each in same)
        found.append(Extra(f"{counted(len(same), 'volume')} of {kind}, {gib} GiB in all", gib * price, hours * price))
    if public := [node for node in nodes if node.public_address]:
        price, hours = address_price(settings), sum(max((now - node.launched).total_seconds() / 3600, 0.0) for node in public)
        found.append(Extra(f"{len(public)} public address{'es' if len(public) > 1 else ''}", len(public) * price, hours * price))
    return found


def ended(cloud: Cloud, settings: Settings, entries: Sequence[LedgerEntry], now: datetime.datetime) -> list[Extra]:
    """Return the costs of ended instances by type, at today's prices.

    The costs are upper bounds, since the hours of an instance count until a command found that it had ended.
    """
    found = []
    for kind, spot, limit in sorted({(each.type, each.spot, each.limit) for each in entries}):
        same = [each for each in entries if (each.type, each.spot, each.limit) == (kind, spot, limit)]
        price = (limit if spot else 0) or on_demand_price(cloud, settings, kind)
        hours = sum(max(each.hours(now), _LEAST_SECONDS / 3600) for each in same)
        what = f"{len(same)} {kind}{' of spot' if spot else ''} ended since {same[0].launched[:10]}, {hours:.2f} h at most"
        found.append(Extra(what, 0.0, hours * price))
    return found


def costs(cloud: Cloud, settings: Settings, nodes: Sequence[Node], now: datetime.datetime) -> list[Cost]:
    """Return the cost of each of `nodes`. A stopped node has no hourly cost. Raises SettingsError for an unknown price."""
    known: dict[tuple[str, str, bool, float], tuple[float, bool]] = {}
    found = []
    for node in nodes:
        key = node.type, node.zone, node.spot, node.limit
        if key not in known:
            market = spot_price(cloud, node.type, node.zone) if node.spot else None
            known[key] = (market, False) if market is not None else (
                node.limit or on_demand_price(cloud, settings, node.type), node.spot
            )  # fmt: skip
        hourly, at_most = known[key]
        runs = node.state in ("pending", "running")
        hours = (now - node.launched).total_seconds() / 3600
        found.append(Cost(node, max(hours, 0.0), hourly if runs else 0.0, at_most))
    return found


def on_demand_price(cloud: Cloud, settings: Settings, name: str) -> float:
    """Return the on-demand price of instance type `name` in USD an hour. Raises SettingsError for an unknown price."""
    terms = {
        "instanceType": name,
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
        "marketoption": "OnDemand",  # exclude capacity blocks, whose hourly price is 0
    }
    return _listed(cloud, settings, name, terms, "Hrs")


def volume_price(cloud: Cloud, settings: Settings, kind: str) -> float:
    """Return the price of a GiB of volumes of `kind`, such as gp3, in USD per hour.

    Raises SettingsError for an unknown price.
    """
    return _listed(cloud, settings, kind, {"productFamily": "Storage", "volumeApiName": kind}, "GB-Mo") / _HOURS


def address_price(settings: Settings) -> float:
    """Return the price of a public address in USD per hour."""
    return settings.prices.get("ipv4", _ADDRESS)


def require_prices(cloud: Cloud, settings: Settings, types: Sequence[str], kinds: Sequence[str]) -> None:
    """Raise SettingsError if a price is unknown.

    The message names all instance types and kinds of volumes without a price.
    """
    unknown, cause = dict[str, str](), ""
    for names, price, unit in ((types, on_demand_price, _HOUR), (kinds, volume_price, _MONTH)):
        for name in names:
            try:
                price(cloud, settings, name)
            except _UnknownPriceError as error:
                unknown[name], cause = unit, error.cause
    if unknown:
        raise _UnknownPriceError(cloud.region, unknown, cause)


class _UnknownPriceError(SettingsError):
    """Error for prices that could not be read from AWS's price list because of `cause`.

    `units`: the unit of each price, by the name of the type or kind.
    """

    def __init__(self, region: str, units: Mapping[str, str], cause: str) -> None:
        names, table = ", ".join(units), ", ".join(f'"{name}" = {unit}' for name, unit in units.items())
        noun = "price" if len(units) == 1 else "prices"
        super().__init__(f"the {noun} of {names} in {region} cannot be asked ({cause}): write prices = {{{table}}}")
        self.cause = cause


def _listed(cloud: Cloud, settings: Settings, name: str, terms: dict[str, str], unit: str) -> float:
    if (known := settings.prices.get(name, cloud.listed.get(name))) is not None:
        return known
    terms |= {"regionCode": cloud.region}
    filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in terms.items()]
    try:
        found = cloud.ask("get_products", service="pricing", ServiceCode="AmazonEC2", Filters=filters)["PriceList"]
        if not found:
            raise LookupError("the price list does not have it")
        cloud.listed[name] = max(_rate(json.loads(product), unit) for product in found)
    except (Ec2Error, ValueError, LookupError, TypeError) as error:
        raise _UnknownPriceError(cloud.region, {name: _HOUR if unit == "Hrs" else _MONTH}, str(error)) from error
    return cloud.listed[name]


def _rate(product: dict[str, Any], unit: str) -> float:
    dimensions = [rate for term in product["terms"]["OnDemand"].values() for rate in term["priceDimensions"].values()]
    rates = [float(rate["pricePerUnit"]["USD"]) for rate in dimensions if rate["unit"] == unit]
    if not any(rate > 0 for rate in rates):
        raise LookupError("the price list says nothing")
    return max(rates)


def spot_price(cloud: Cloud, name: str, zone: str) -> float | None:
    """Return the present spot price of type `name` in `zone`, in USD per hour; None if EC2 states no price."""
    found = cloud.ask(
        "describe_spot_price_history",
        InstanceTypes=[name],
        ProductDescriptions=["Linux/UNIX"],
        Filters=[{"Name": "availability-zone", "Values": [zone]}],
        PaginationConfig={"MaxItems": 1},  # the newest price comes first
    )["SpotPriceHistory"]
    return float(found[0]["SpotPrice"]) if found else None


@dataclass(frozen=True)
class Standing:
    """Nodes and volumes that a cluster has, and the equipment of each further node.

    `gib`: GiB of volumes of a further node. `public`: True if it gets a public address.
    """

    nodes: Sequence[Node]
    volumes: Sequence[Volume]
    gib: int
    public: bool


def most_per_hour(cloud: Cloud, settings: Settings, standing: Standing, types: Sequence[str]) -> float:
    """Return the highest cost per hour of a cluster with one more node of each of `types`, including volumes and addresses.

    A spot instance costs at most its spot_price, or the on-demand price if spot_price is 0. Raises CapError if the sum exceeds
    max_hourly_price, and SettingsError for an unknown price.
    """
    bought = [(node.type, node.limit) for node in standing.nodes] + [(name, settings.spot_price) for name in types]
    gib = [(each.kind, each.gib) for each in standing.volumes] + [("gp3", standing.gib) for _ in types]
    addresses = sum(bool(node.public_address) for node in standing.nodes) + len(types) * standing.public
    hours = {one: one[1] or on_demand_price(cloud, settings, one[0]) for one in sorted(set(bought))}
    kinds = {kind: volume_price(cloud, settings, kind) for kind in sorted({kind for kind, _ in gib})}
    total = (
        sum(hours[one] for one in bought) + sum(kinds[kind] * size for kind, size in gib) + addresses * address_price(settings)
    )
    if total > settings.max_hourly_price:
        raise CapError(
            f"{counted(len(bought), 'node')} may cost {total:.2f} USD an hour with their volumes and addresses, over "
            f"max_hourly_price = {settings.max_hourly_price:g}: raise it, or take fewer or smaller ones"
        )
    return total
