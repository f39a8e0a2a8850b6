"""Launch: complete a cluster, or start one in a place with room. The plan is made before the first change."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from psnode_ec2.cloud import Cloud, progress
from psnode_ec2.cluster import Cluster, Node, counted
from psnode_ec2.costs import Standing, most_per_hour, require_prices
from psnode_ec2.ec2_errors import DeadlineError, Ec2Error, NodeLostError, OthersError, SettingsError
from psnode_ec2.instance_requests import find_image
from psnode_ec2.keys import check_key, public_key
from psnode_ec2.places import architecture_of, by_market, places
from psnode_ec2.resources import let_in, own_range, volumes_of
from psnode_ec2.settings import Settings
from psnode_ec2.starting_nodes import LaunchPlan, start_missing
from psnode_ec2.wait_for_cluster import end_superfluous, wait

_ROUNDS = 8  # maximum plans of a launch while other launches change the same cluster


def launch(cluster: Cluster, settings: Settings, confirm: Callable[[str], None]) -> list[Node]:
    """Bring the cluster to its size, and wait until every node runs. `confirm` raises DeclinedError if the user declines.

    All started resources carry the id of this launch, and the launch ends no others. If another launch changes the cluster in
    the meantime, for example while the user is asked, a new plan is made and confirmed.
    """
    mine, started = secrets.token_hex(8), set[str]()
    try:
        for attempt in range(_ROUNDS):
            try:
                return _once(cluster, settings, confirm, mine, started)
            except OthersError as error:
                progress(f"{error}: planning again")
                cluster.cloud.pause(attempt, first=1.0)
        raise OthersError(f"other launches change cluster {cluster.name} all the time: launch again when they have ended")
    except Ec2Error as error:
        if started or isinstance(error, NodeLostError | DeadlineError):
            progress("the other nodes stay, and cost: status shows them, launch completes the cluster, shutdown ends it")
        raise


def _once(cluster: Cluster, settings: Settings, confirm: Callable[[str], None], mine: str, started: set[str]) -> list[Node]:
    if started:
        end_superfluous(cluster, cluster.nodes(), mine, settings.n_workers, started)
    plan = make_plan(cluster, settings)
    if any(plan.missing.values()):
        confirm(str(plan))
        start_missing(cluster, settings, plan, mine, started)
    else:
        let_in(cluster, settings, plan.ssh_from)
    if cluster.cloud.dry_run:
        return []
    return wait(cluster, settings, mine, started, {node.id for node in plan.nodes})


def require(cloud: Cloud, settings: Settings) -> None:
    """Raise SettingsError if the key, the region or the credentials are missing. The message names everything that is missing.

    No call to AWS is made.
    """
    _together(lambda: public_key(settings.keyfile), lambda: cloud.region)


def _together(*checks: Callable[[], str | None]) -> list[str | None]:
    """Return the results of all checks. If checks fail, raise one SettingsError with all their messages."""
    results, failed = list[str | None](), list[SettingsError]()
    for check in checks:
        try:
            results.append(check())
        except SettingsError as error:
            failed.append(error)
    if failed:
        raise failed[0] if len(failed) == 1 else SettingsError("; ".join(map(str, failed)))
    return results


def make_plan(cluster: Cluster, settings: Settings) -> LaunchPlan:
    """Return the plan of missing nodes and their places. Raises SettingsError and its subclasses before any change."""
    cloud = cluster.cloud
    key = public_key(settings.keyfile)
    nodes = cluster.nodes()
    if stopped := [node.id for node in nodes if node.state in ("stopping", "stopped")]:
        raise SettingsError(f"{', '.join(stopped)} of this cluster is stopped: start it in the console, or run shutdown")
    have = {role: sum(node.role == role for node in nodes) for role in ("worker", "master")}
    if have["worker"] > settings.n_workers:
        raise SettingsError(
            f"the cluster has {counted(have['worker'], 'worker')}, and n_workers is {settings.n_workers}: raise it, or "
            "run shutdown first"
        )
    if have["master"] > 1:
        masters = " and ".join(node.id for node in nodes if node.role == "master")
        raise SettingsError(f"the cluster has {have['master']} masters, {masters}: end one in the console, or run shutdown")
    check_key(cluster, settings, key, nodes)
    where = by_market(cloud, settings, places(cloud, settings, only=nodes[0].zone if nodes else ""))
    types = [settings.master_type] + settings.n_workers * [settings.worker_type]
    every = [*types, *settings.fallback_types]
    image = find_image(cloud, settings.image_id, architecture_of(cloud, every))
    missing = {"worker": settings.n_workers - have["worker"], "master": 1 - have["master"]}
    new = missing["master"] * [settings.master_type] + missing["worker"] * [settings.worker_type]
    public = settings.connect == "public" or any(place.maps for place in where)
    tried = sorted({*new, *settings.fallback_types}) if new else []
    _, ssh_from = _together(
        lambda: require_prices(cloud, settings, [] if settings.spot_price else tried, ["gp3"] if new else []),
        lambda: own_range(cloud, settings),
    )
    standing = Standing(nodes, volumes_of(cluster, nodes), settings.volume_gib + image.more_gib, public)
    cost = max(
        most_per_hour(cloud, settings, standing, names)
        for names in (new, *([other] * len(new) for other in settings.fallback_types))
    )
    return LaunchPlan(nodes, missing, where, image, key, str(ssh_from), cost, settings.max_hours, _idle(settings))


def _idle(settings: Settings) -> str:
    if not settings.idle_minutes:
        return ""
    who = "a node" if settings.lasts else "a worker, and not the master, which holds what was trained,"
    return f"{who} ends itself when nothing of yours has run on it for {settings.idle_minutes} minutes"
