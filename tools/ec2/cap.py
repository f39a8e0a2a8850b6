"""The cap on the cost of an hour: the most that a cluster may cost with the nodes that a launch adds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from psnode_ec2 import prices
from psnode_ec2.cloud import Cloud
from psnode_ec2.cluster import Node
from psnode_ec2.errors import CapError
from psnode_ec2.settings import Settings
from psnode_ec2.volumes import Volume


@dataclass(frozen=True)
class Standing:
    """Present state of a cluster and its extension: `gib` and `public` are those of a new node."""

    nodes: Sequence[Node]
    volumes: Sequence[Volume]
    gib: int
    public: bool


def most_per_hour(cloud: Cloud, settings: Settings, standing: Standing, types: Sequence[str]) -> float:
    """The most that an hour of a cluster can cost with one more node of each of `types`: instances, volumes, public addresses.

    A spot instance costs at most the spot_price that it is bought with, or its price on demand if that is 0. Raises
    CapError if the sum is over max_hourly_price, ConfigurationError.
    """
    bought = [(node.type, node.limit) for node in standing.nodes] + [(name, settings.spot_price) for name in types]
    gib = [(each.kind, each.gib) for each in standing.volumes] + [("gp3", standing.gib) for _ in types]
    addresses = sum(bool(node.public_address) for node in standing.nodes) + len(types) * standing.public
    hours = {one: one[1] or prices.on_demand(cloud, settings, one[0]) for one in sorted(set(bought))}
    kinds = {kind: prices.volume(cloud, settings, kind) for kind in sorted({kind for kind, _ in gib})}
    total = (
        sum(hours[one] for one in bought) + sum(kinds[kind] * size for kind, size in gib) + addresses * prices.address(settings)
    )
    if total > settings.max_hourly_price:
        raise CapError(
            f"{len(bought)} nodes may cost {total:.2f} USD an hour with their volumes and addresses, over max_hourly_price = "
            f"{settings.max_hourly_price:g}: raise it, or take fewer or smaller ones"
        )
    return total
