"""Logger to Trackio: to its local store (TRACKIO_DIR), or to the Space or server that Trackio's own variables name.

`trackio show` displays the runs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from psnode.records.loggers.base import LoggedRun

_PROJECT = "psnode"  # unless TRACKIO_PROJECT is set


class Trackio:
    """A run of Trackio, named after the run's directory and id. The evaluator and a resumed run continue it."""

    def begin(self, run: LoggedRun) -> None:
        """Begin the run of Trackio, or continue it."""
        import trackio

        self._run = trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", _PROJECT),
            name=f"{run.name}-{run.id}",
            config=dict(run.settings),
            resume="allow",
            embed=False,
        )

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Log figures of `step`."""
        self._run.log(dict(values), step=step)

    def event(self, step: int, text: str) -> None:
        """Send an alert, which the dashboard lists."""
        self._run.alert(text.partition(":")[0], text, step=step)

    def end(self, summary: Mapping[str, Any] | None) -> None:
        """Log the summary as figures of the last step."""
        if summary is not None:
            self._run.log({f"run/{name}": value for name, value in summary.items()}, step=int(summary["steps"]))
        self._run.finish()  # type: ignore[no-untyped-call]
