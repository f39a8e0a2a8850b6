"""The search for runs in directories."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from psnode.errors import ConfigurationError
from psnode.records.directory import holds_run

_DEPTH = 6  # maximum depth of a run's folder below the folder that is searched


def find(places: Sequence[Path]) -> list[Path]:
    """Return the directories of runs in `places`, in order.

    A place that is itself a run is returned; below any other place, runs are searched for. Links are not followed. Raises
    ConfigurationError for a place that is not a directory.
    """
    found: list[Path] = []
    for place in places:
        if not place.is_dir():
            raise ConfigurationError(f"{place} is not a directory: name runs, or directories that contain some")
        for folder, folders, files in os.walk(place):
            here = Path(folder)
            if holds_run(here, files):
                found.append(here)
                folders.clear()
            elif len(here.relative_to(place).parts) >= _DEPTH:
                folders.clear()
            folders.sort()
    return list(dict.fromkeys(found))
