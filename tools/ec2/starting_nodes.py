"""Start of the missing nodes of a cluster, in the first place with room for all of them.

If the start fails, the nodes that this launch started are ended, but no others. If another launch has changed the cluster, they
stay for the next plan.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from psnode_ec2.cloud import progress
from psnode_ec2.cluster import Cluster, Node, counted
from psnode_ec2.ec2_errors import (
    CapacityError,
    Ec2Error,
    NoKeyPairError,
    NotOfferedError,
    NotShownError,
    OthersError,
    PriceTooLowError,
    ThrottledError,
)
from psnode_ec2.instance_requests import Common, Image, start
from psnode_ec2.keys import ensure_key
from psnode_ec2.places import Place
from psnode_ec2.resources import ensure_firewall, ensure_placement
from psnode_ec2.settings import Settings
from psnode_ec2.shutdown import end_nodes, remove_resources

_LATE = 4  # tries to find the nodes of a call whose response was lost


@dataclass(frozen=True)
class LaunchPlan:
    """Plan of a launch: the missing nodes by role, the places to try, and the highest cost of the whole cluster per hour."""

    nodes: list[Node]
    missing: dict[str, int]  # numbers of missing nodes by role
    places: list[Place]
    image: Image
    public: str
    ssh_from: str
    most_per_hour: float
    max_hours: int
    idle: str = ""

    def __str__(self) -> str:
        new = " and ".join(counted(count, role) for role, count in self.missing.items() if count)
        price = f"the whole cluster costs at most {self.most_per_hour:.2f} USD an hour"
        end = (
            f"every node ends itself after {self.max_hours} h, with its volume and what was trained on it"
            if self.max_hours
            else ""
        )
        start = f"start {new}: {self.places[0]}, {self.image.name}"
        return "; ".join(part for part in (start, price, end, self.idle) if part)


def start_missing(cluster: Cluster, settings: Settings, plan: LaunchPlan, launch: str, started: set[str]) -> None:
    """Start the missing nodes of `plan`, and add their ids to `started`.

    `started`: ids of all nodes that this launch has started and not ended. If the start fails, all nodes that carry the id
    `launch` are ended, and its groups are removed if the cluster then has no nodes; nodes of other launches are not touched.
    Raises OthersError if the cluster has changed since the plan was made. In this case the nodes started so far stay, for the
    next plan.
    """
    try:
        _start(cluster, settings, plan, launch, started)
    except OthersError:
        raise
    except (NotShownError, NoKeyPairError) as error:
        if settings.key_name and isinstance(error, NoKeyPairError):
            raise
        raise OthersError(f"what the nodes need was removed meanwhile ({error})") from error
    except Ec2Error:
        if not cluster.cloud.dry_run:
            with contextlib.suppress(Ec2Error):  # report the first error
                if not cluster.nodes():
                    remove_resources(cluster, launch, placed=settings.placement_group)
        raise


def _start(cluster: Cluster, settings: Settings, plan: LaunchPlan, launch: str, started: set[str]) -> None:
    cloud = cluster.cloud
    key = ensure_key(cluster, settings, plan.public, launch)
    firewall = ensure_firewall(cluster, settings, plan.places[0].vpc, plan.ssh_from, launch)
    placement = ensure_placement(cluster, launch) if settings.placement_group else None
    common = Common(plan.image, key, firewall, placement, launch)
    refused: dict[str, Ec2Error] = {}
    for attempt in range(settings.capacity_attempts):
        for place in plan.places:
            try:
                return _start_in(cluster, settings, plan, common, place, attempt, started)
            except (CapacityError, NotOfferedError) as error:
                refused[str(place)] = error
                progress(f"no room for {place}: {error}")
        if attempt + 1 < settings.capacity_attempts:
            cloud.pause(attempt, first=15.0, longest=120.0)
    raise _summary(refused)


def _summary(refused: dict[str, Ec2Error]) -> Ec2Error:
    causes = list(refused.values())
    kinds = (kind for kind in (PriceTooLowError, NotOfferedError) if all(isinstance(cause, kind) for cause in causes))
    kind = next(kinds, CapacityError)
    return kind(f"no room anywhere (tried {'; '.join(refused)}); the last answer: {causes[-1]}")


def _start_in(
    cluster: Cluster, settings: Settings, plan: LaunchPlan, common: Common, place: Place, attempt: int, started: set[str]
) -> None:
    """Start all missing nodes in one place. If the place has no room for some of them, end the others again."""
    for role, count in plan.missing.items():
        if not count:
            continue
        # only nodes of this role: a repeated launch may see nodes of the other role that the first launch did not see
        moment = (attempt, *sorted(node.id for node in plan.nodes if node.role == role))
        try:
            _unchanged(cluster, plan, started)
            started |= start(cluster, settings, common, place, role, count, moment)
        except OthersError:
            raise
        except Ec2Error as error:
            if not cluster.cloud.dry_run:
                _undo(cluster, started, common.launch, error)
            raise


def _unchanged(cluster: Cluster, plan: LaunchPlan, started: set[str]) -> None:
    """Check that the cluster has only the plan's nodes and those that this launch has started since. Raises OthersError."""
    if {node.id for node in cluster.nodes()} - started != {node.id for node in plan.nodes} - started:
        raise OthersError(f"the nodes of cluster {cluster.name} are not those that the plan was made for")


def _undo(cluster: Cluster, started: set[str], launch: str, error: Ec2Error) -> None:
    """End all nodes of this launch and clear `started`. If they cannot be ended, raise an error with the exit code of `error`."""
    heard = type(error) not in (Ec2Error, ThrottledError)
    try:
        for attempt in range(1 if heard else _LATE):  # EC2 may not show all started nodes yet
            if found := {node.id for node in cluster.nodes() if node.launch == launch} - started:
                started |= found
                break
            if not heard:
                cluster.cloud.pause(attempt, first=1.0)
        end_nodes(cluster, started)
        started.clear()
    except Ec2Error as failed:
        both = Ec2Error(f"{error}; what was started stays, and costs ({failed}): status shows it, shutdown ends it")
        both.exit_code = error.exit_code
        raise both from error
