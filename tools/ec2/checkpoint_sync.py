"""Checkpoints of a run in S3. They are fetched before the run resumes, and uploaded during the run.

At the end of the job, `run` waits for the uploads.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from psnode_ec2.cloud import progress
from psnode_ec2.copying import put
from psnode_ec2.ec2_errors import SettingsError
from psnode_ec2.exports import train_dir
from psnode_ec2.node_ssh import Access

_PROGRAM = "s3_checkpoints.py"
_LAST_SECONDS = 600  # time limit for the upload of the last checkpoint


def bring_back(way: Access, command: Sequence[str], where: str) -> None:
    """Fetch from S3 the newest checkpoint of the run that `command` resumes, unless the master already has it.

    `where`: the folder in remote_dir in which the command runs. Raises SettingsError and RemoteError.
    """
    run = PurePosixPath(where, train_dir(command))
    if run.is_absolute() or ".." in run.parts:
        raise SettingsError(f"--train-dir {train_dir(command)} is not below remote_dir, whose runs go to {way.settings.store}")
    _put(way)
    step = way.script(way.master, "restore.sh", *_words(way), str(run))
    if step:
        progress(f"{run}: {step} came from {way.settings.store}")


def keep(way: Access) -> None:
    """Start a process on the master that uploads new checkpoints during the job, and the last one after it."""
    _put(way)
    way.script(way.master, "start_keeping.sh", *_words(way))


def wait(way: Access) -> None:
    """Wait at most ten minutes for the upload of the last checkpoint, and report the result."""
    said = way.script(way.master, "kept.sh", way.settings.remote_dir, str(_LAST_SECONDS)).strip()
    if said:
        progress(f"{way.settings.store}: {said.partition(' ')[2]}")


def _put(way: Access) -> None:
    put(way, [way.master], Path(__file__).with_name(_PROGRAM), f"{way.settings.remote_dir}/")


def _words(way: Access) -> tuple[str, str, str]:
    return way.settings.remote_dir, f"{way.settings.venv}/bin/python", way.settings.store
