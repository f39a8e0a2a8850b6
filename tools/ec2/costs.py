"""What the nodes have cost so far and cost an hour, at the prices of this moment, volumes and traffic not counted."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

from tools.ec2 import prices
from tools.ec2.cloud import Cloud
from tools.ec2.cluster import Node
from tools.ec2.settings import Settings

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


def costs(cloud: Cloud, settings: Settings, nodes: Sequence[Node], now: datetime.datetime) -> list[Cost]:
    """One for each of `nodes`. A stopped node costs no instance hours. Raises ConfigurationError if a price is not known."""
    known: dict[tuple[str, str, bool], tuple[float, bool]] = {}
    found = []
    for node in nodes:
        key = node.type, node.zone, node.spot
        if key not in known:
            market = prices.spot(cloud, node.type, node.zone) if node.spot else None
            limit = settings.spot_price if node.spot else 0.0
            known[key] = (market, False) if market is not None else (
                limit or prices.on_demand(cloud, settings, node.type), node.spot
            )  # fmt: skip
        hourly, at_most = known[key]
        runs = node.state in ("pending", "running")
        hours = (now - node.launched).total_seconds() / 3600
        found.append(Cost(node, max(hours, 0.0), hourly if runs else 0.0, at_most))
    return found
