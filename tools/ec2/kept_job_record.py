"""Record of a job that is kept alive: in a file of state_dir, so that another start of this tool goes on with it.

One process at a time holds it. `shutdown` removes it, and with it every intention to start nodes again.
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
    """`words` is the command, `restarts` the most that may be used, `began` the start in UTC, `job` the one that runs, if any.

    `steps` are the newest checkpoints before each restart; `brought` is the local folder of a checkpoint of `run`.
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
        """Of max_hours since the beginning, for nodes that are started now; 0 if they are over."""
        gone = (now - datetime.datetime.fromisoformat(self.began)).total_seconds() / 3600
        return max(math.ceil(settings.max_hours - gone), 0)


def code_of(settings: Settings) -> Path:
    """The archive of the user's code as it was when the job began."""
    return settings.state / _CODE


def read(settings: Settings) -> Charge | None:
    """The charge, if there is one. Raises SettingsError if it cannot be read."""
    path = settings.state / _FILE
    try:
        return Charge(**json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise SettingsError(f"{path} cannot be read ({error}): remove it, and run --keep-alive -- train ... again") from None


def write(settings: Settings, charge: Charge) -> None:
    """Keep it, whole. Raises SettingsError."""
    path = settings.state / _FILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = path.with_suffix(".new")
        new.write_text(to_json(dataclasses.asdict(charge), indent=1))
        os.replace(new, path)
    except OSError as error:
        raise SettingsError(f"{path} cannot be written ({error.strerror}): set state_dir to another folder") from None


def forget(settings: Settings) -> None:
    """Remove it, with its copy of the code."""
    for name in (_FILE, _CODE):
        (settings.state / name).unlink(missing_ok=True)


@contextlib.contextmanager
def held(settings: Settings) -> Iterator[None]:
    """Hold a lock: no other process keeps a job of this cluster alive meanwhile. Raises SettingsError."""
    settings.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (settings.state / _LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SettingsError("another run --keep-alive of this cluster is at work on this machine: see it there") from None
        yield
