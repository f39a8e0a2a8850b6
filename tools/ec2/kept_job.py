"""`run --keep-alive`: begin a job that is kept alive, or continue a job that an earlier process of this tool kept alive."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Sequence
from pathlib import Path

from psnode_ec2 import checkpoint_sync
from psnode_ec2 import kept_job_record as record
from psnode_ec2.cloud import progress
from psnode_ec2.cluster import counted
from psnode_ec2.ec2_errors import NoClusterError, SettingsError
from psnode_ec2.exports import train_dir
from psnode_ec2.flags import CommandContext
from psnode_ec2.keep_alive import keep_alive
from psnode_ec2.kept_job_record import Charge
from psnode_ec2.reviving import Revival
from psnode_ec2.worktree import pack

RESTARTS = 5  # the default


def run_kept(session: CommandContext, words: Sequence[str], sync: Path | None, restarts: int | None) -> int:
    """Keep a job alive until it has ended, and return its exit code. Raises SettingsError and GivenUpError."""
    settings = session.settings
    with record.held(settings):
        there = record.read(settings)
        charge = there or _new(session, words, sync, restarts)
        if there:
            _same(there, words, settings.state)
            there.restarts = there.restarts if restarts is None else restarts
            progress(f"going on with: {' '.join(there.words)} ({there.used} of {there.restarts} restarts used)")
        work = Revival(session.cluster, settings, charge.words, synced=charge.synced, adopts=there is not None)
        code = keep_alive(charge, settings, session.cloud, work)
        if settings.checkpoints:
            with contextlib.suppress(NoClusterError):
                checkpoint_sync.wait(session.way())
        return code


def begin(session: CommandContext, words: Sequence[str], restarts: int | None) -> Charge:
    """Ask the user to confirm a new job, and return its record. Raises SettingsError and DeclinedError."""
    settings = session.settings
    if not words:
        raise SettingsError("there is no job to go on with: run --keep-alive -- train --train-dir runs/first ...")
    if words[0] != "train":
        raise SettingsError(f"--keep-alive resumes training by its checkpoints, and {words[0]} is something else: leave it out")
    train_dir(words)
    charge = Charge(list(words), False, RESTARTS if restarts is None else restarts, _now())
    hours = f", for {settings.max_hours} h from now" if settings.max_hours else ", without an end"
    session.confirm(
        f"keep this job alive: restart it up to {counted(charge.restarts, 'time')}, with nodes for up to "
        f"{settings.max_hourly_price:g} USD an hour{hours}"
    )
    return charge


def _new(session: CommandContext, words: Sequence[str], sync: Path | None, restarts: int | None) -> Charge:
    settings, charge = session.settings, begin(session, words, restarts)
    charge.synced = sync is not None
    if sync:
        settings.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        pack(sync, record.code_of(settings), settings.keyfile)
    record.write(settings, charge)
    return charge


def _same(there: Charge, words: Sequence[str], state: Path) -> None:
    if words and list(words) != there.words:
        raise SettingsError(
            f"another job is kept alive here ({' '.join(there.words)}): run --keep-alive without a command goes on with it; "
            f"remove keep-alive.json in {state} to give it up"
        )


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat()
