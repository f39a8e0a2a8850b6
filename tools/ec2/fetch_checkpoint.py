"""The checkpoint that a shutdown keeps: the newest one, fetched together with the records of its run before the nodes end."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import click

from psnode_ec2.cluster import Cluster, Node
from psnode_ec2.copying import fetch
from psnode_ec2.ec2_errors import Ec2Error, HostKeyError, KeepError
from psnode_ec2.hostkeys import pin
from psnode_ec2.node_ssh import Access
from psnode_ec2.settings import Settings

_TWO_MINUTES = 120  # seconds for the job's last checkpoint


def keep(cluster: Cluster, settings: Settings, nodes: Sequence[Node]) -> str:
    """Stop the job, fetch the newest checkpoint from the master, and return a line that says where it is.

    If no training can have run, nothing is fetched, and "" is returned. This is so if there is no master, if the master is
    still starting, or if it has started recently and its host key is not known yet. Raises KeepError if the search for the
    checkpoint fails, or if it cannot be fetched.
    """
    masters = [node for node in nodes if node.role == "master" and node.state != "pending"]
    if not masters:
        return ""
    if cluster.cloud.dry_run:
        click.echo(f"would fetch the newest checkpoint from {masters[0].name} to {settings.kept}")
        return ""
    try:
        found = [fetched(cluster, settings, master) for master in masters]
        return "; ".join(str(each) if each.target else "there is no checkpoint on the master to fetch" for each in found if each)
    except Ec2Error as error:
        raise KeepError(
            f"the newest checkpoint cannot be fetched ({error}): nothing was ended; launch lets this machine in if its "
            "address has changed, shutdown --discard ends the nodes without it"
        ) from error


@dataclass(frozen=True)
class Fetched:
    """A fetched checkpoint: its `name`, the `folder` of its run on the master, and the local folder `target`.

    `target` is None if no checkpoint was found.
    """

    name: str = ""
    folder: str = ""
    target: Path | None = None

    def __str__(self) -> str:
        return f"the newest checkpoint, {self.name} of {self.folder}, is in {self.target}"


def fetched(cluster: Cluster, settings: Settings, master: Node) -> Fetched | None:
    """Stop the job of `master` and fetch its newest checkpoint. Raises Ec2Error.

    Returns None if no training can have run yet.
    """
    if master.state != "running":
        raise Ec2Error(f"{master.id} is {master.state}, with what it holds: start it in the console")
    if not master.address(settings.connect):
        raise Ec2Error(f"{master.id} has no {settings.connect} address: set connect to the other kind")
    if not (known := _known_hosts(cluster, settings, master)):
        return None
    way = Access(settings, [master], known)
    answer = way.script(master, "newest.sh", settings.remote_dir, str(_TWO_MINUTES)).rstrip("\n")
    folder, *names = answer.split("\n")
    if not names:
        return Fetched()
    target = settings.kept / master.id / _below(folder)
    fetch(way, master, folder, str(target), *names)
    return Fetched(PurePosixPath(names[-1]).name, folder, target)


def _below(folder: str) -> PurePosixPath:
    """Return the relative local path for `folder`, the path of a folder on a node.

    Raises Ec2Error for an unsafe path, since a node is not trusted.
    """
    parts = PurePosixPath(folder).parts
    if not folder.isprintable() or ".." in parts:
        raise Ec2Error(f"the master says that it lies in {folder!r}")
    return PurePosixPath(*parts[folder.startswith("/") :])


def _known_hosts(cluster: Cluster, settings: Settings, master: Node) -> Path | None:
    try:
        return pin(cluster, settings, [master], patient=False)
    except HostKeyError:
        age = datetime.datetime.now(datetime.UTC) - master.launched
        if age.total_seconds() > settings.launch_deadline:
            raise
        return None
