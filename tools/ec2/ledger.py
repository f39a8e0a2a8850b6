"""The ledger: a record of the nodes that commands on this machine have seen. Only the command `cost` shows it.

EC2 forgets a node an hour after its end, so the ledger keeps the node's data, in a JSON file in state_dir. The resources that
exist, and their owners, are always read from tags.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from psnode.config.plain_json import to_json
from psnode_ec2.cluster import LIVE, Node
from psnode_ec2.settings import Settings

_FILE = "nodes.json"


@dataclass(frozen=True)
class LedgerEntry:
    """A node in the ledger.

    `ended`: the time, in UTC, at which a command first found that the node had ended; "" while it lives.
    """

    id: str
    name: str
    type: str
    zone: str
    region: str
    owner: str
    spot: bool
    limit: float
    launched: str
    ends: str
    ended: str = ""

    def hours(self, now: datetime.datetime) -> float:
        """Return the most hours that the node can have lived until `now`.

        Its life ends when a command found it ended or when it had to end itself, whichever is earlier.
        """
        last = min(datetime.datetime.fromisoformat(text) for text in (self.ended, self.ends, now.isoformat()) if text)
        return max((last - datetime.datetime.fromisoformat(self.launched)).total_seconds() / 3600, 0.0)


def note(settings: Settings, region: str, owner: str, nodes: Sequence[Node], now: datetime.datetime) -> list[LedgerEntry]:
    """Record `nodes` in the ledger, and return the entries of ended nodes, oldest first.

    `nodes`: all nodes of the cluster that EC2 shows now, including ended ones. A ledger that cannot be read counts as empty. A
    ledger that cannot be written is left as it is.
    """
    live = {node.id for node in nodes if node.state in LIVE}
    with _opened(settings.state / _FILE) as entries:
        for node in nodes:
            there = entries.get(node.id)
            ends = node.ends.isoformat() if node.ends else ""
            fresh = LedgerEntry(
                node.id, node.name, node.type, node.zone, region, owner, node.spot, node.limit, node.launched.isoformat(), ends
            )
            entries[node.id] = replace(fresh, ended=there.ended if there else "")
        for identity, each in entries.items():
            if (each.region, each.owner) == (region, owner) and identity not in live and not each.ended:
                entries[identity] = replace(each, ended=now.isoformat())
        gone = [each for each in entries.values() if each.ended and (each.region, each.owner) == (region, owner)]
    return sorted(gone, key=lambda each: each.launched)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[dict[str, LedgerEntry]]:
    """Yield the entries of the file by id, and write them back at exit. A lock admits only one command at a time."""
    with contextlib.ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            file = stack.enter_context(path.open("a+", encoding="utf-8"))
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            text = file.read()
        except (OSError, UnicodeDecodeError):
            yield {}
            return
        entries = _read(text)
        yield entries
        with contextlib.suppress(OSError):
            file.truncate(0)
            file.write(to_json([asdict(each) for each in entries.values()], indent=0))
            file.flush()


def _read(text: str) -> dict[str, LedgerEntry]:
    with contextlib.suppress(ValueError, TypeError, KeyError):
        found: list[dict[str, Any]] = json.loads(text)
        return {each["id"]: LedgerEntry(**each) for each in found}
    return {}
