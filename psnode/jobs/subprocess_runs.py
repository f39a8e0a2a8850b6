"""Runs of `psnode` in separate processes. A run that an earlier command left unfinished is resumed."""

from __future__ import annotations

import ctypes
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

from psnode.config.files import read_json
from psnode.config.plain_json import to_json
from psnode.errors import PsnodeError
from psnode.records import checkpoint
from psnode.records.metrics import SUMMARY

_ASKED = "asked.json"  # file in a run's directory: the arguments with which the run began
_LOCK = ".lock"  # lock file of an active run (psnode.records.directory)
_PR_SET_PDEATHSIG = 1


def begin(directory: Path, arguments: Sequence[str]) -> bool:
    """Prepare `directory` for a run of psnode with `arguments`. Return True if the directory contains such a run to resume.

    If a process still works in the directory, this function waits for its end. A run without a checkpoint is deleted. Raises
    PsnodeError if the directory contains a run with other arguments.
    """
    asked = to_json(list(arguments))
    if (directory / _ASKED).exists():
        require_same(directory, arguments)
        with FileLock(directory / _LOCK):
            resumes = checkpoint.latest(directory) is not None
        if resumes:
            return True
        shutil.rmtree(directory)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / _ASKED).write_text(asked)
    return False


def require_same(directory: Path, arguments: Sequence[str]) -> None:
    """Raise PsnodeError if `directory` contains a run with other arguments."""
    if (directory / _ASKED).exists() and not holds(directory, arguments):
        raise PsnodeError(f"{directory} holds a run with other settings: choose another --output")


def holds(directory: Path, arguments: Sequence[str]) -> bool:
    """Return True if `directory` contains a run that began with `arguments`."""
    try:
        return (directory / _ASKED).read_text() == to_json(list(arguments))
    except (OSError, ValueError):
        return False


def begun_in(output: Path) -> list[Path]:
    """Return the directories in `output` that contain runs, in the order of their names."""
    return sorted(path.parent for path in output.glob(f"*/{_ASKED}"))


def finished(directory: Path) -> int:
    """Return the number of steps of the run in `directory` if it has ended successfully, otherwise 0."""
    found = _summary(directory)
    return int(found["steps"]) if found.get("exit_code") == 0 else 0


def _summary(directory: Path) -> dict[str, Any]:
    try:
        return dict(read_json(directory / SUMMARY))
    except FileNotFoundError:
        return {}


def run_psnode(arguments: Sequence[str], log: Path | None = None) -> int:
    """Run `psnode ARGUMENTS` in a separate process, and return its exit code. `log`: the file to which its output is appended.

    The process receives TERM if this process is killed or the calling thread ends.
    """
    command = [sys.executable, "-m", "psnode", *arguments]
    libc = ctypes.CDLL(None)  # loaded before the fork, after which the child must not load libraries

    def ask_when_orphaned() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

    output = log.open("ab") if log is not None else None
    try:
        with subprocess.Popen(command, stdout=output, stderr=output, preexec_fn=ask_when_orphaned) as process:
            try:
                return process.wait()
            except KeyboardInterrupt:  # the process has received the same signal, and writes a checkpoint
                process.wait()
                raise
    finally:
        if output is not None:
            output.close()
