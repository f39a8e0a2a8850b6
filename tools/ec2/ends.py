"""The hour at which nodes end themselves, and the notice an hour before: in every command, and to whoever follows a job."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from psnode_ec2.cluster import LIVE, Node

_NOTICE = datetime.timedelta(hours=1)


def first_end(nodes: Sequence[Node]) -> datetime.datetime | None:
    """The moment at which the first of them ends itself."""
    return min((node.ends for node in nodes if node.ends and node.state in LIVE), default=None)


def seconds_to_notice(nodes: Sequence[Node], now: datetime.datetime) -> float | None:
    """From now until an hour before the first end, at least 0; None if no node ends itself."""
    end = first_end(nodes)
    return max(0.0, (end - _NOTICE - now).total_seconds()) if end else None


def notice(nodes: Sequence[Node], now: datetime.datetime) -> str:
    """A line for people, if a node ends within the hour; else nothing."""
    end = first_end(nodes)
    if end is None or end - now > _NOTICE:
        return ""
    minutes = max(0, int((end - now).total_seconds() // 60))
    return (
        f"the nodes end themselves at {end:%Y-%m-%d %H:%M} UTC, in {minutes} minutes, with all that lies on them: get what was "
        "trained, or write it to a shared directory"
    )
