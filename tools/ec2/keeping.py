"""What a shutdown keeps: the newest checkpoint on the nodes, with its run's records, fetched before they end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from tools.ec2.cluster import Cluster, Node
from tools.ec2.copying import fetch
from tools.ec2.errors import Ec2Error, HostKeyError, KeepError
from tools.ec2.hostkeys import pin
from tools.ec2.remote import Access
from tools.ec2.settings import Settings

_TWO_MINUTES = 120  # for the job's last checkpoint


def keep(cluster: Cluster, settings: Settings, nodes: Sequence[Node]) -> str:
    """Stop the job, fetch the newest checkpoint of the master's home directory, and return a line that says where it is.

    Nothing is fetched, and nothing returned, if no master runs, or if it shows no host key: who trains on it has pinned one.
    Raises KeepError if it cannot be fetched.
    """
    masters = [node for node in nodes if node.role == "master" and node.state == "running" and node.address(settings.connect)]
    if not masters:
        return ""
    if cluster.cloud.dry_run:
        click.echo(f"would fetch the newest checkpoint from {masters[0].name} to {settings.kept}")
        return ""
    try:
        if not (known := _known_hosts(cluster, settings, masters)):
            return ""
        way = Access(settings, masters, known)
        folder, *names = way.script(way.master, "newest.sh", settings.remote_dir, str(_TWO_MINUTES)).splitlines() or [""]
        if not names:
            return "there is no checkpoint on the master to fetch"
        target = settings.kept / way.master.id / folder
        fetch(way, way.master, folder, str(target), *names)
    except Ec2Error as error:
        raise KeepError(
            f"the newest checkpoint cannot be fetched ({error}): nothing was ended; launch lets this machine in if its "
            "address has changed, shutdown --discard ends the nodes without it"
        ) from error
    return f"the newest checkpoint, {names[-1].rpartition('/')[2]} of {folder}, is in {target}"


def _known_hosts(cluster: Cluster, settings: Settings, nodes: Sequence[Node]) -> Path | None:
    try:
        return pin(cluster, settings, nodes, patient=False)
    except HostKeyError:
        return None
