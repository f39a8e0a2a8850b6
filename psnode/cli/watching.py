"""A progress line on the terminal for a trial that trains, because the trial's own output goes to a file."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from psnode.jobs.tuning.trial import Trial
from psnode.records.metrics import METRICS

_SECONDS = 0.5  # seconds between checks of the records
_TAIL = 1 << 16  # bytes read from the end of the records, enough for a line


@contextmanager
def watching(trial: Trial, steps: int, which: str) -> Iterator[None]:
    """Show the progress of `trial` towards step `steps` inside the context, if standard error is a terminal."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    columns = TextColumn(escape(f"{which}: {trial.name}: step")), MofNCompleteColumn(), TextColumn("{task.description}")
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        task, over = progress.add_task("", total=steps), threading.Event()

        def follow() -> None:
            while not over.wait(_SECONDS):
                found = last_record(trial.directory / METRICS)
                loss = found.get("loss")
                told = f"loss {loss:.4f}" if isinstance(loss, float) else ""
                progress.update(task, completed=min(steps, found.get("step", 0)), description=told)

        thread = threading.Thread(target=follow, name="watching", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def last_record(path: Path) -> dict[str, Any]:
    """Return the last complete record in a file to which another process appends records; {} if there is none yet."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            found = json.loads(file.read().rpartition(b"\n")[0].rpartition(b"\n")[2])
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) and isinstance(found.get("step"), int) else {}
