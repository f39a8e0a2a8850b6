"""The problems that a job would have on the hosts of a hostfile, each with a remedy, found from the answers of these hosts."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from psnode.jobs.hosts.hostfile import Host
from psnode.jobs.hosts.survey import Answer

_AHEAD = 1.0  # seconds; larger differences between clocks are reported
_MACHINES = "docs/machines.md"


class Problem(NamedTuple):
    """A problem of a host, with a remedy.

    If `stops` is True, no job can run. Otherwise a job can run, but may be slower, or its results may differ from the
    expected ones.
    """

    host: str
    stops: bool
    text: str
    remedy: str


def problems(own: Mapping[str, Any], answers: Sequence[Answer], data: Path | None) -> list[Problem]:
    """Return all problems, host by host. `own`: the facts about this machine, with which all other hosts are compared."""
    return [found for answer in answers for found in _of(own, answer, answers[0].host.name, data)]


def _of(own: Mapping[str, Any], answer: Answer, master: str, data: Path | None) -> Iterator[Problem]:
    host, facts = answer.host, answer.facts
    if answer.silence:
        yield Problem(host.name, True, answer.silence, _remedy(host, answer.silence))
    if not facts:
        return
    yield from _versions(own, host.name, facts)
    ways = [(answer.up, f"does not reach a port of {master}"), (answer.down, f"{master} does not reach its ports")]
    ways += [(way, f"does not reach a port of {name}") for name, way in answer.others.items()]
    for way, what in ways:
        if "error" in way:
            remedy = f"open ports from 1024 on between the two, or name the network: {_MACHINES}, 4 and 5"
            yield Problem(host.name, True, f"{what} ({way['error']})", remedy)
    if not facts["data"]:
        yield Problem(host.name, True, f"{data} does not exist", "copy the data set to the same path, or share it")
    if host.slots > facts["cores"]:
        text = f"{host.slots} slots on {facts['cores']} cores: ranks wait for each other"
        yield Problem(host.name, False, text, "fewer slots in the hostfile")
    if abs(answer.clock) > _AHEAD:
        text = f"its clock is {abs(answer.clock):.1f} s {'ahead' if answer.clock > 0 else 'behind'}: so are times in records"
        yield Problem(host.name, False, text, "run a time service on it, such as chrony")


def _versions(own: Mapping[str, Any], name: str, facts: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield a problem for each of psnode, torch, mpi4py, MPI and Python whose version differs from that on this machine.

    A missing package counts as another version, and so does another source of the same version of psnode.
    """
    where = f"with {shlex.quote(sys.executable)} there"
    for key, what, stops in (
        ("psnode", "psnode", True),
        ("torch", "torch", False),
        ("mpi4py", "mpi4py", False),
        ("mpi", "MPI", True),
    ):
        if own[key] == facts[key]:
            continue
        if not facts[key]:
            yield Problem(name, True, f"{what} is missing", f"install it {where}, as on this machine: docs/install.md")
        else:
            text = f"{what} is {facts[key]}, here it is {own[key] or 'missing'}"
            yield Problem(name, stops, text, f"install the same {where}")
    if own["python"] != facts["python"]:
        text = f"Python is {facts['python']}, here it is {own['python']}"
        yield Problem(name, False, text, "recreate the environment on it with the same Python")
    if own["psnode"] == facts["psnode"] and own["source"] != facts["source"]:
        text = (
            f"psnode is {facts['psnode']} as here, but its source differs ({facts['source'] or 'earlier'}, here {own['source']})"
        )
        yield Problem(name, True, text, "bring both clones to the same commit, or train with --allow-unlike-versions")


def _remedy(host: Host, silence: str) -> str:
    """Return a remedy for a host that does not answer, chosen by ssh's message `silence`."""
    target = shlex.quote(host.name)
    for pattern, remedy in (
        ("permission denied|no more authentication|too many authentication", f"ssh-copy-id {target}"),
        ("host key", f"once by hand: ssh {target}, and compare the key that it shows"),
        ("could not resolve|name or service", "correct the name in the hostfile, or tell this machine its address in /etc/hosts"),
        ("refused", f"start sshd on {target}, or name its port in ~/.ssh/config"),
        ("no such file|not found", f"make psnode's environment there at the same path, {sys.executable} ({_MACHINES}, 1)"),
        ("timed out|no route|unreachable|did not answer|reset", "is it on, and does its network let this machine in at port 22?"),
    ):
        if re.search(pattern, silence, re.IGNORECASE):
            return remedy
    return f"try by hand: ssh {target} true"
