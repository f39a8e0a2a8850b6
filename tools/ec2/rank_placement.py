"""Ranks of a job by node: rank 0 on the master's node, and workers by the number of GPUs or by the settings.

mpirun fills the nodes in the order of the hostfile, so that the ranks of a node are consecutive. The local rank of a rank
chooses its GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from psnode_ec2.cloud import Cloud
from psnode_ec2.cluster import Node
from psnode_ec2.ec2_errors import SettingsError
from psnode_ec2.settings import AUTO, Settings

ALIAS = "deeplearning-worker"  # followed by the number of the line; the master has number 1


def slots(cloud: Cloud, settings: Settings, nodes: Sequence[Node]) -> list[int]:
    """Return the number of ranks on each of `nodes`, rank 0 included. Raises SettingsError if no rank is a worker."""
    asked = {node.type for node in nodes if _wanted(settings, node) == AUTO}
    gpus = gpus_of(cloud, sorted(asked)) if asked else {}
    found = []
    for node in nodes:
        workers = _wanted(settings, node)
        if workers == AUTO:
            # on a worker's node without a GPU one rank uses all cores
            workers = gpus.get(node.type, 0) or int(node.role != "master")
        found.append(workers + (node.role == "master"))
    if sum(found) < 2:
        raise SettingsError("no node has a worker: set workers_per_node")
    return found


def lines(nodes: Sequence[Node], counts: Sequence[int]) -> list[str]:
    """Return a hostfile line for each node with ranks.

    If each node has one rank, the lines state no number of slots, which leaves room for spares.
    """
    if all(count == 1 for count in counts):
        return [node.private_address for node in nodes]
    return [f"{node.private_address} slots={count}" for node, count in zip(nodes, counts, strict=True) if count]


def gpus_of(cloud: Cloud, types: Sequence[str]) -> dict[str, int]:
    """Return the number of GPUs of each instance type in `types`."""
    found = cloud.ask("describe_instance_types", InstanceTypes=list(types))["InstanceTypes"]
    return {each["InstanceType"]: sum(gpu["Count"] for gpu in each.get("GpuInfo", {}).get("Gpus", [])) for each in found}


def _wanted(settings: Settings, node: Node) -> int:
    return settings.workers_on_master if node.role == "master" else settings.workers_per_node


def host_files(nodes: Sequence[Node], counts: Sequence[int]) -> dict[str, str]:
    """Return the contents of the host files by file name; `counts` are the ranks of each node.

    hosts_address  private addresses, the master's first: for `psnode launch --hostfile`
    hosts          lines for /etc/hosts
    hostfile       the addresses with their ranks as slots: for mpirun, and for `psnode launch --hostfile` if a node has several
    """
    addresses = [node.private_address for node in nodes]
    return {
        "hosts_address": "".join(f"{address}\n" for address in addresses),
        "hosts": "".join(
            f"{address}\t{ALIAS}{number}\t{node.name}\n"
            for number, (address, node) in enumerate(zip(addresses, nodes, strict=True), 1)
        ),
        "hostfile": "".join(f"{address} slots={count}\n" for address, count in zip(addresses, counts, strict=True)),
    }


def write_hosts(nodes: Sequence[Node], counts: Sequence[int], directory: Path) -> list[Path]:
    """Write the host files into `directory` and return their paths. Raises SettingsError."""
    written = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in host_files(nodes, counts).items():
            (directory / name).write_text(text)
            written.append(directory / name)
    except OSError as error:
        raise SettingsError(f"{error.filename} cannot be written ({error.strerror}): choose another --directory") from None
    return written
