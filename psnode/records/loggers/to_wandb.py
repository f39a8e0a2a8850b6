"""Logger to Weights & Biases, configured by its own variables WANDB_PROJECT, WANDB_ENTITY and WANDB_MODE."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from psnode.records.loggers.base import LoggedRun

_PROJECT = "psnode"  # unless WANDB_PROJECT is set


class WandB:
    """A run of Weights & Biases with the id of psnode's run. It is continued when psnode's run is resumed.

    Two processes cannot write to the same run of Weights & Biases. Evaluations are therefore a separate run, ID-evaluate,
    and both runs are in the group ID. `step` is an ordinary column, over which the other columns are plotted, so steps that
    are repeated after a resume appear twice.
    """

    def begin(self, run: LoggedRun) -> None:
        """Begin the run of Weights & Biases, or continue it. Offline files go to the run's directory."""
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            id=f"{run.id}-evaluate" if run.evaluates else run.id,
            group=run.id,
            job_type="evaluate" if run.evaluates else "train",
            name=f"{run.name} evaluations" if run.evaluates else run.name,
            dir=run.directory,
            config=dict(run.settings),
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(console="off", silent=True),
        )
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Log a row with `step` and the figures."""
        self._run.log({"step": step, **values})

    def event(self, step: int, text: str) -> None:
        """Log a row with `step` and the text, which a table of the run shows."""
        self._run.log({"step": step, "event": text})

    def end(self, summary: Mapping[str, Any] | None) -> None:
        """Log the summary and the exit code (0 without a summary), and end the run of Weights & Biases."""
        self._run.summary.update({f"run/{name}": value for name, value in (summary or {}).items()})
        self._run.finish(exit_code=0 if summary is None else summary["exit_code"])
