"""Hostfiles in mpirun's format: one host per line, `NAME slots=N`, `NAME:N` or just `NAME`."""

from __future__ import annotations

import re
import socket
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from psnode.errors import ConfigurationError

_LINE = re.compile(r"(?P<name>[^\s:=]+|[0-9a-fA-F:]*::?[0-9a-fA-F:]+)(?::(?P<after>\d+))?(?:\s+(?P<more>.*))?")
_SLOTS = re.compile(r"(?:^|\s)slots\s*=\s*(\d+)")


class Host(NamedTuple):
    """A host in a hostfile. `slots`: the number of ranks that it may get; 0 if the file does not state a number."""

    name: str
    slots: int

    @property
    def is_here(self) -> bool:
        """True if the host is this machine, on which mpirun starts ranks without ssh."""
        own = socket.gethostname()
        return self.name in {"localhost", "127.0.0.1", "::1", own, own.split(".")[0], socket.getfqdn()}


def text_of(path: Path) -> str:
    """Return the text of a hostfile. Raises ConfigurationError if it cannot be read or names no host."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"hostfile {path} cannot be read ({error}): give a text file of hosts, one per line") from None
    if not any(line.strip() and not line.lstrip().startswith("#") for line in text.splitlines()):
        raise ConfigurationError(f"hostfile {path} names no host: write one per line, the master's first")
    return text


def hosts_of(path: Path) -> list[Host]:
    """Return the hosts in a file in order. A host in several lines is returned once, with the sum of its slots.

    Raises ConfigurationError for an unusable file.
    """
    slots: dict[str, int] = {}
    for number, line in enumerate(text_of(path).splitlines(), 1):
        words = line.split("#")[0].strip()
        if not words:
            continue
        found = _LINE.fullmatch(words)
        if found is None or found["name"].startswith("-"):
            raise ConfigurationError(f"hostfile {path}, line {number}: {words[:60]!r} is not a host: write NAME or NAME slots=N")
        said = found["after"] or next(iter(_SLOTS.findall(found["more"] or "")), "0")
        slots[found["name"]] = slots.get(found["name"], 0) + int(said)
    return [Host(name, count) for name, count in slots.items()]


def in_turn(path: Path) -> bool:
    """Return True if no line of a file states `slots`. mpirun then deals ranks to the hosts in turn, one rank at a time."""
    return "slots" not in text_of(path)


def used(path: Path, ranks: int) -> int | None:
    """Return the number of hosts in a file on which mpirun starts `ranks` ranks.

    If `in_turn` is True, hosts get ranks in turn. Otherwise they are filled in the file's order. Then the result is None if a
    host does not state its slots, because it gets as many ranks as it has cores, and if there are too few slots.
    """
    hosts = hosts_of(path)
    if in_turn(path):
        return min(len(hosts), ranks)
    ends = accumulate(host.slots for host in hosts)
    return next((number for number, end in enumerate(ends, 1) if end >= ranks), None) if all(h.slots for h in hosts) else None
