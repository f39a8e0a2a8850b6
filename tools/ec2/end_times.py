"""Times at which nodes end themselves: `extend` changes them.

In the last hour, `status` and commands such as `run` and `ssh` give a notice.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Sequence
from pathlib import Path

from psnode_ec2.cluster import LIVE, Cluster, Node
from psnode_ec2.costs import costs
from psnode_ec2.ec2_errors import SettingsError
from psnode_ec2.node_ssh import Access
from psnode_ec2.tags import HOURS

_NOTICE = datetime.timedelta(hours=1)
_LEAST_MINUTES = 5  # minimum time from now to a new end, enough to fetch the trained weights


def first_end(nodes: Sequence[Node]) -> datetime.datetime | None:
    """Return the earliest time at which one of `nodes` ends itself, in UTC; None if no node does."""
    return min((node.ends for node in nodes if node.ends and node.state in LIVE), default=None)


def seconds_to_notice(nodes: Sequence[Node], now: datetime.datetime) -> float | None:
    """Return the seconds until an hour before the first end of a node, at least 0; None if no node ends itself."""
    end = first_end(nodes)
    return max(0.0, (end - _NOTICE - now).total_seconds()) if end else None


def notice(nodes: Sequence[Node], now: datetime.datetime) -> str:
    """Return a notice for the user if a node ends itself within an hour, otherwise an empty string."""
    end = first_end(nodes)
    if end is None or end - now > _NOTICE:
        return ""
    minutes = max(0, int((end - now).total_seconds() // 60))
    return (
        f"the nodes end themselves at {end:%Y-%m-%d %H:%M} UTC, in {minutes} minutes, with all that lies on them: get what was "
        "trained, or write it to a shared directory"
    )


def extend(cluster: Cluster, way: Access, now: datetime.datetime, confirm: Callable[[str], None]) -> list[Node]:
    """Set the end of every node to max_hours after its start, first on the node and then in its tag.

    Returns the nodes that were changed. The command is safe to repeat, since the hours count from the start of the node, not
    from now. Raises SettingsError if a node would end within five minutes.
    """
    hours = way.settings.max_hours
    changed = [node for node in way.nodes if node.hours != hours]
    if not changed:
        return []
    ends = {node.id: node.launched + datetime.timedelta(hours=hours) for node in changed}
    least = now + datetime.timedelta(minutes=_LEAST_MINUTES)
    if hours and (late := [node for node in changed if ends[node.id] < least]):
        age = (now - late[0].launched).total_seconds() / 3600
        raise SettingsError(
            f"{late[0].name} has run for {age:.1f} h, and max_hours is {hours}: set it to more, or end the nodes with shutdown"
        )
    confirm(_question(cluster, way, changed, hours))
    text = Path(__file__).with_name("end_after.sh").read_text()

    def one(node: Node) -> None:
        minutes = math.ceil((ends[node.id] - now).total_seconds() / 60) if hours else 0
        way.script(node, "extend.sh", str(minutes), text)
        # if this call fails, the tag keeps the old hours, which is harmless
        cluster.cloud.change("create_tags", Resources=[node.id], Tags=[{"Key": HOURS, "Value": str(hours)}])

    if way.dry_run:
        for node in changed:
            one(node)
    else:
        way.children.map(one, changed)
    return changed


def _question(cluster: Cluster, way: Access, nodes: list[Node], hours: int) -> str:
    who = f"{len(nodes)} of {len(way.nodes)} nodes"
    if not hours:
        return f"let {who} run until somebody ends them, whatever that costs"
    more = sum(
        max(hours - node.hours, 0) * each.hourly
        for node, each in zip(nodes, costs(cluster.cloud, way.settings, nodes, datetime.datetime.now(datetime.UTC)), strict=True)
        if node.hours
    )
    return f"let {who} end themselves {hours} h after their start, for up to {more:.2f} USD more for instances"
