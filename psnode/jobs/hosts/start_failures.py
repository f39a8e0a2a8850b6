"""Reasons why a job cannot start on the hosts of a hostfile, as messages in addition to those of mpirun."""

from __future__ import annotations

import re
import socket
from pathlib import Path

from psnode.errors import ConfigurationError
from psnode.jobs.hosts.hostfile import hosts_of
from psnode.jobs.supervision import Ended

_FEW_SLOTS = re.compile(r"not enough slots", re.IGNORECASE)
_NO_HOST = re.compile(
    r"could not resolve hostname|daemon failed to report back|unable to (?:reliably )?start one or more daemons|"
    r"(?:ssh|connect to host).*(?:refused|timed out|no route|unreachable|denied)|host key verification failed",
    re.IGNORECASE,
)


def refuse_too_few_slots(hostfile: Path, ranks: int) -> None:
    """Raise ConfigurationError if the hosts have too few slots for `ranks` ranks.

    A hostfile in which a host does not state its slots is always accepted.
    """
    hosts = hosts_of(hostfile)
    if all(host.slots for host in hosts) and (slots := sum(host.slots for host in hosts)) < ranks:
        raise ConfigurationError(
            f"hostfile {hostfile} has {slots} slot{'' if slots == 1 else 's'}, and the job has {ranks} ranks, the master's among "
            "them: add slots or hosts, or use fewer workers"
        )


def not_started(hostfile: Path, ended: Ended) -> str:
    """Return one line that explains why mpirun could not start a job on the hosts; empty if the hosts were not the reason."""
    if ended.code == 0:
        return ""
    if _FEW_SLOTS.search(ended.heard):
        return (
            f"hostfile {hostfile} has too few slots for the job's ranks, the master's among them: write NAME slots=N, where N "
            "without it is the number of cores, add hosts, or use fewer workers"
        )
    if not _NO_HOST.search(ended.heard):
        return ""
    unknown = [host.name for host in hosts_of(hostfile) if not host.is_here and not _known(host.name)]
    what = f"no host {', '.join(unknown)} is known here" if unknown else "mpirun could not start ranks on a host of it"
    return f"hostfile {hostfile}: {what}: correct the name or the way to it; psnode doctor --hosts {hostfile} tells of each host"


def _known(name: str) -> bool:
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return False
    return True
