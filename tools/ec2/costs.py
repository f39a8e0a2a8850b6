"""Costs of a cluster so far and an hour, at the prices of this moment, traffic not counted."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

from psnode_ec2 import prices
from psnode_ec2.cloud import Cloud
from psnode_ec2.cluster import Node
from psnode_ec2.ledger import Entry
from psnode_ec2.settings import Settings
from psnode_ec2.volumes import Volume

_LEAST_SECONDS = 60.0  # EC2 bills Linux by the second, from a minute on


@dataclass(frozen=True)
class Cost:
    """A node's share: hours since its start, USD an hour. `at_most`: a spot price is not known, so this is the limit."""

    node: Node
    hours: float
    hourly: float
    at_most: bool

    @property
    def so_far(self) -> float:
        """USD."""
        return max(self.hours, _LEAST_SECONDS / 3600) * self.hourly


@dataclass(frozen=True)
class Extra:
    """Costs beside instances: `text` names them, `hourly` and `so_far` are USD."""

    text: str
    hourly: float
    so_far: float


def extras(
    cloud: Cloud, settings: Settings, nodes: Sequence[Node], volumes: Sequence[Volume], now: datetime.datetime
) -> list[Extra]:
    """The volumes by kind, and the public addresses. Raises ConfigurationError if a price is not known."""
    found = []
    for kind in sorted({each.kind for each in volumes}):
        price, same = prices.volume(cloud, settings, kind), [each for each in volumes if each.kind == kind]
        gib = sum(each.gib for each in same)
        hours = sum(each.gib * max((now - each.created).total_seconds() / 3600, 0.0) for each in same)
        found.append(Extra(f"{len(same)} volumes of {kind}, {gib} GiB in all", gib * price, hours * price))
    if public := [node for node in nodes if node.public_address]:
        price, hours = prices.address(settings), sum(max((now - node.launched).total_seconds() / 3600, 0.0) for node in public)
        found.append(Extra(f"{len(public)} public addresses", len(public) * price, hours * price))
    return found


def ended(cloud: Cloud, settings: Settings, entries: Sequence[Entry], now: datetime.datetime) -> list[Extra]:
    """The instances that have ended, by type, at today's prices and at most: each until it was seen to have ended."""
    found = []
    for kind, spot, limit in sorted({(each.type, each.spot, each.limit) for each in entries}):
        same = [each for each in entries if (each.type, each.spot, each.limit) == (kind, spot, limit)]
        price = (limit if spot else 0) or prices.on_demand(cloud, settings, kind)
        hours = sum(max(each.hours(now), _LEAST_SECONDS / 3600) for each in same)
        what = f"{len(same)} {kind}{' of spot' if spot else ''} ended since {same[0].launched[:10]}, {hours:.2f} h at most"
        found.append(Extra(what, 0.0, hours * price))
    return found


def costs(cloud: Cloud, settings: Settings, nodes: Sequence[Node], now: datetime.datetime) -> list[Cost]:
    """One for each of `nodes`. A stopped node costs no instance hours. Raises ConfigurationError if a price is not known."""
    known: dict[tuple[str, str, bool, float], tuple[float, bool]] = {}
    found = []
    for node in nodes:
        key = node.type, node.zone, node.spot, node.limit
        if key not in known:
            market = prices.spot(cloud, node.type, node.zone) if node.spot else None
            known[key] = (market, False) if market is not None else (
                node.limit or prices.on_demand(cloud, settings, node.type), node.spot
            )  # fmt: skip
        hourly, at_most = known[key]
        runs = node.state in ("pending", "running")
        hours = (now - node.launched).total_seconds() / 3600
        found.append(Cost(node, max(hours, 0.0), hourly if runs else 0.0, at_most))
    return found
