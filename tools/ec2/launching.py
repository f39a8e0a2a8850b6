"""Launch: complete the cluster that is there, or start it where there is room; all reading comes before any change."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tools.ec2 import prices
from tools.ec2.cloud import progress
from tools.ec2.cluster import ENDED, LIVE, Cluster, Node
from tools.ec2.errors import (
    CapacityError,
    ConfigurationError,
    DeadlineError,
    Ec2Error,
    NodeLostError,
    NotOfferedError,
    PriceTooLowError,
)
from tools.ec2.images import Image, find_image
from tools.ec2.keys import check_key, ensure_key, public_key
from tools.ec2.places import Place, architecture_of, places
from tools.ec2.removing import end_nodes, remove_resources
from tools.ec2.requests import Common, start
from tools.ec2.resources import (
    ensure_firewall,
    ensure_placement,
    let_in,
    own_range,
)
from tools.ec2.settings import Settings


@dataclass(frozen=True)
class Plan:
    """What a launch will do: how many nodes are missing, where they may go, and what an hour of the whole may cost."""

    nodes: list[Node]
    missing: dict[str, int]  # by role
    places: list[Place]
    image: Image
    public: str
    ssh_from: str
    most_per_hour: float

    def __str__(self) -> str:
        new = " and ".join(f"{count} {role}{'s' if count > 1 else ''}" for role, count in self.missing.items() if count)
        price = f"the whole cluster costs at most {self.most_per_hour:.2f} USD an hour"
        return f"start {new}: {self.places[0]}, {self.image.name}; {price}"


def launch(cluster: Cluster, settings: Settings, confirm: Callable[[str], None]) -> list[Node]:
    """Bring the cluster to its size and wait until every node runs; `confirm` raises DeclinedError if the user says no."""
    plan = make_plan(cluster, settings)
    started: set[str] = set()
    if not any(plan.missing.values()):
        let_in(cluster, settings, plan.ssh_from)
    else:
        confirm(str(plan))
        try:
            started = _start(cluster, settings, plan)
        except Ec2Error:
            if not plan.nodes and not cluster.cloud.dry_run:
                with contextlib.suppress(Ec2Error):  # the first error is the one to tell
                    if not cluster.nodes():
                        remove_resources(cluster)
            raise
    if cluster.cloud.dry_run:
        return []
    try:
        return wait(cluster, settings, started)
    except Ec2Error:
        progress("the other nodes stay, and cost: status shows them, launch completes the cluster, shutdown ends it")
        raise


def make_plan(cluster: Cluster, settings: Settings) -> Plan:
    """What is missing and where it can go. Raises ConfigurationError and what belongs to it, before anything is changed."""
    cloud = cluster.cloud
    public = public_key(settings.keyfile)
    nodes = cluster.nodes()
    if stopped := [node.id for node in nodes if node.state in ("stopping", "stopped")]:
        raise ConfigurationError(f"{', '.join(stopped)} of this cluster is stopped: start it in the console, or run shutdown")
    have = {role: sum(node.role == role for node in nodes) for role in ("worker", "master")}
    if have["worker"] > settings.n_workers:
        raise ConfigurationError(
            f"the cluster has {have['worker']} workers, and n_workers is {settings.n_workers}: raise it, or run shutdown first"
        )
    if have["master"] > 1:
        masters = " and ".join(node.id for node in nodes if node.role == "master")
        raise ConfigurationError(f"the cluster has {have['master']} masters, {masters}: end one in the console, or run shutdown")
    check_key(cluster, settings, public, nodes)
    where = places(cloud, settings, only=nodes[0].zone if nodes else "")
    types = [settings.master_type] + settings.n_workers * [settings.worker_type]
    every = [*types, *settings.fallback_types]
    image = find_image(cloud, settings.image_id, architecture_of(cloud, every))
    cost = max(
        prices.most_per_hour(cloud, settings, names)
        for names in (types, *([other] * len(types) for other in settings.fallback_types))
    )
    missing = {"worker": settings.n_workers - have["worker"], "master": 1 - have["master"]}
    return Plan(nodes, missing, where, image, public, own_range(cluster, settings), cost)


def _start(cluster: Cluster, settings: Settings, plan: Plan) -> set[str]:
    """Start what is missing in the first place that has room; returns the ids."""
    cloud = cluster.cloud
    key = ensure_key(cluster, settings, plan.public)
    firewall = ensure_firewall(cluster, settings, plan.places[0].vpc, plan.ssh_from)
    common = Common(plan.image, key, firewall, ensure_placement(cluster) if settings.placement_group else None)
    refused: dict[str, Ec2Error] = {}
    for attempt in range(settings.capacity_attempts):
        for place in plan.places:
            try:
                return _start_in(cluster, settings, plan, common, place, attempt)
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


def _start_in(cluster: Cluster, settings: Settings, plan: Plan, common: Common, place: Place, attempt: int) -> set[str]:
    """Start all that is missing in one place; if a part has no room there, end the other part again. Returns the ids."""
    started: set[str] = set()
    before = {node.id for node in plan.nodes}
    for role, count in plan.missing.items():
        if not count:
            continue
        # those of this role alone: a repeated launch may see the other one's nodes, which the first did not
        moment = (attempt, *sorted(node.id for node in plan.nodes if node.role == role))
        try:
            started |= start(cluster, settings, common, place, role, count, moment)
        except Ec2Error:
            if not cluster.cloud.dry_run:  # EC2 may not show yet all that it has started
                end_nodes(cluster, started | {node.id for node in cluster.nodes() if node.id not in before})
            raise
    return started


def wait(cluster: Cluster, settings: Settings, started: Iterable[str] = ()) -> list[Node]:
    """The nodes, once all of them are running. Raises NodeLostError if one of them or of `started` ends, DeadlineError."""
    deadline = time.monotonic() + settings.launch_deadline
    seen = set(started)
    for attempt in range(10**6):
        nodes = cluster.nodes(LIVE + ENDED)
        if lost := [node for node in nodes if node.id in seen and node.state in ENDED]:
            raise NodeLostError(lost[0].id, lost[0].reason or "no reason given")
        nodes = [node for node in nodes if node.state in LIVE]
        seen |= {node.id for node in nodes}
        if len(nodes) == settings.n_workers + 1 and all(node.state == "running" for node in nodes):
            return nodes
        if time.monotonic() > deadline:
            break
        progress(f"waiting: {sum(node.state == 'running' for node in nodes)} of {settings.n_workers + 1} nodes are running")
        cluster.cloud.pause(attempt, first=2.0, longest=15.0)
    raise DeadlineError(f"not all nodes were running after {settings.launch_deadline} s: status shows them, launch goes on")
