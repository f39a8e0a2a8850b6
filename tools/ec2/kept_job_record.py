"""The record of a job that is kept alive: a file in state_dir, with which a later process of this tool can continue the job.

One process at a time holds the record. `shutdown` removes it, so that no node is started again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import fcntl
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path

from psnode.config.plain_json import to_json
from psnode_ec2.ec2_errors import SettingsError
from psnode_ec2.settings import Settings

_FILE, _CODE, _LOCK = "keep-alive.json", "keep-alive.tar", "keep-alive.lock"


@dataclasses.dataclass
class Charge:
    """The record of a job that is kept alive.

    `words`: the command. `restarts`: the maximum number of restarts. `began`: the start in UTC. `job`: the folder of the
    running job, or "". `steps`: the newest checkpoint before each restart. `brought`: the local folder of a checkpoint that was
    fetched from an ended node, or "".
    """

    words: list[str]
    synced: bool
    restarts: int
    began: str
    used: int = 0
    job: str = ""
    steps: list[str] = dataclasses.field(default_factory=list)
    brought: str = ""

    def hours_left(self, settings: Settings, now: datetime.datetime) -> int:
        """Return the hours of max_hours that remain for new nodes, rounded up; 0 if all are used up."""
        gone = (now - datetime.datetime.fromisoformat(self.began)).total_seconds() / 3600
        return max(math.ceil(settings.max_hours - gone), 0)


def code_of(settings: Settings) -> Path:
    """Return the path of the archive with the user's code, which was packed when the job began."""
    return settings.state / _CODE


def read(settings: Settings) -> Charge | None:
    """Return the record of the kept job, or None if there is no file. Raises SettingsError if the file cannot be read."""
    path = settings.state / _FILE
    try:
        return Charge(**json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise SettingsError(f"{path} cannot be read ({error}): remove it, and run --keep-alive -- train ... again") from None


def write(settings: Settings, charge: Charge) -> None:
    """Replace the record of the kept job atomically by `charge`. Raises SettingsError if it cannot be written."""
    path = settings.state / _FILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = path.with_suffix(".new")
        new.write_text(to_json(dataclasses.asdict(charge), indent=1))
        os.replace(new, path)
    except OSError as error:
        raise SettingsError(f"{path} cannot be written ({error.strerror}): set state_dir to another folder") from None


def forget(settings: Settings) -> None:
    """Remove the record of the kept job, and the archive of its code."""
    for name in (_FILE, _CODE):
        (settings.state / name).unlink(missing_ok=True)


@contextlib.contextmanager
def held(settings: Settings) -> Iterator[None]:
    """Hold a lock, so that only one process of this machine keeps a job of the cluster alive.

    Raises SettingsError if another process holds the lock.
    """
    settings.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (settings.state / _LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SettingsError("another run --keep-alive of this cluster is at work on this machine: see it there") from None
        yield
