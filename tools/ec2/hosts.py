"""The files that get_hosts writes, as ATOMO's users know them, and one that mpirun reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from psnode_ec2.cluster import Node
from psnode_ec2.errors import ConfigurationError

ALIAS = "deeplearning-worker"  # and the number of the line: the master is the first


def host_files(nodes: Sequence[Node], counts: Sequence[int]) -> dict[str, str]:
    """Contents by name; `counts` are the ranks of each node.

    hosts_address  private addresses, the master's first: for `psnode launch --hostfile`
    hosts          lines for /etc/hosts
    hostfile       the addresses with their ranks as slots: for mpirun, and `psnode launch --hostfile` with several on a node
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
    """Write the files into `directory`; returns their paths. Raises ConfigurationError."""
    written = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in host_files(nodes, counts).items():
            (directory / name).write_text(text)
            written.append(directory / name)
    except OSError as error:
        raise ConfigurationError(f"{error.filename} cannot be written ({error.strerror}): choose another --directory") from None
    return written
