"""Tags of a cluster's resources, which tell its nodes from all other nodes of the account."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CLUSTER, OWNER, ROLE, LAUNCH, HOURS = "psnode:cluster", "psnode:owner", "psnode:role", "psnode:launch", "psnode:hours"
LIMIT = "psnode:spot-price"


def tags_for(name: str, owner: str, launch: str, *, role: str = "", hours: int = 0, limit: str = "") -> list[dict[str, str]]:
    """Return the tags, in EC2's form, of a resource that `launch` makes for `owner`'s cluster `name`."""
    tags = {"Name": f"psnode-{name}{'-' + role if role else ''}", CLUSTER: name, OWNER: owner, LAUNCH: launch}
    tags |= {key: value for key, value in ((ROLE, role), (HOURS, str(hours or "")), (LIMIT, limit)) if value}
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def tags_of(resource: Mapping[str, Any]) -> dict[str, str]:
    """Return the tags of a resource as a dict."""
    return {tag["Key"]: tag["Value"] for tag in resource.get("Tags", [])}
