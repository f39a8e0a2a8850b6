"""The search for runs in directories."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Sequence
from pathlib import Path

from psnode.errors import ConfigurationError, PsnodeError
from psnode.records.checkpoint import MARK
from psnode.records.directory import CONFIG, saved_run
from psnode.records.metrics import METRICS

_DEPTH = 6  # maximum depth of a run's folder below the folder that is searched


def find(places: Sequence[Path]) -> list[Path]:
    """Return the directories of runs: each of `places` that is a run, and the runs below the others, in order.

    Links are not followed. Raises ConfigurationError for a place that is not a directory.
    """
    found: list[Path] = []
    for place in places:
        if not place.is_dir():
            raise ConfigurationError(f"{place} is not a directory: name runs, or directories that contain some")
        for folder, folders, files in os.walk(place):
            here = Path(folder)
            if _holds_run(here, files):
                found.append(here)
                folders.clear()
            elif len(here.relative_to(place).parts) >= _DEPTH:
                folders.clear()
            folders.sort()
    return list(dict.fromkeys(found))


def _holds_run(folder: Path, files: Collection[str]) -> bool:
    """Return True if `folder`, whose files are `files`, holds a run, even a damaged one.

    A config.json alone is not enough, since many other programs write a file of that name.
    """
    if METRICS in files or CONFIG not in files:
        return METRICS in files
    with contextlib.suppress(PsnodeError):
        saved_run(folder)
        return True
    return MARK in files
